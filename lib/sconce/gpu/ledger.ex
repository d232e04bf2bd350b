defmodule Sconce.GPU.Ledger do
  alias Sconce.{Device, Error, Native}
  alias Sconce.Native.Call

  @owners [
    weights: "weights of policies",
    optimiser: "moments and moving averages of runs",
    sessions: "states of games, and buffers of their steps",
    loader: "batches on the card; 0, because the loader keeps them in the memory of the host",
    activations: "work in flight: saved activations, gradients, workspaces of libraries",
    cached: "taken from the driver and unused; `Sconce.GPU.release/1` returns it"
  ]

  @moduledoc """
  The memory that this VM has taken on a card, by owner, in bytes:

  | field | contents |
  |---|---|
  #{Enum.map_join(@owners, "\n", fn {name, what} -> "| `#{name}` | #{what} |" end)}

  `total` and `free` are the memory of the card; `free` is nil until the card is opened. `others` is memory that is
  neither free nor in the ledger: other programs, other libraries of this VM, and CUDA's own memory of some hundred
  MB. `budget` is the limit of the whole ledger, or nil.

      iex> ledger = %Sconce.GPU.Ledger{device: "cuda:0", total: 24_000_000_000, free: 20_000_000_000,
      ...>   weights: 40_000_000, optimiser: 80_000_000, activations: 2_100_000_000, cached: 900_000_000}
      iex> to_string(ledger)
      "weights 40.0 MB, optimiser 80.0 MB, activations 2.1 GB, cached 900.0 MB"

  ## Allocation and release

  Memory is allocated when it is first needed. Freed memory returns to the driver, except for a cache of at most
  256 MiB. During a run, all freed memory stays cached for the next step. When nothing of this VM is on the card any
  more, only the context, the libraries and a few KB of recorded work remain. A policy leaves the card when no process
  refers to it, a session when its owner ends, and a run when its process ends.

  ## Limits

  `memory_fraction` and `memory_budget` of `Sconce.Config` limit the ledger; the lower limit applies. Both are read
  whenever a device is chosen. A card keeps the limit that it was opened with until all of its memory is free again.

  An allocation beyond the limit is an error of kind `:out_of_memory` and never ends the VM. Its `details` have the
  `memory` (the fields above), `bytes` if the requested size is known, `remedies`, and the same remedies as a sentence
  (`mend`). A training step that runs out of memory is repeated with half as many windows at a time, see
  `Sconce.Trainer`.

  ## Together with EXLA

  Sconce creates one memory pool for each card that it opens (`cuMemPoolCreate`) and makes it the current pool. EXLA
  allocates all of its memory at its start and keeps it. Set both `memory_fraction`s so that their sum is below 1, or
  set `preallocate: false` for EXLA to share the memory.

  Training steps recorded as CUDA graphs have their own memory in the driver, which counts as `activations`, within
  the budget. The memory of recorded decisions counts as `sessions`; there is one recording for each power of two of
  games stepped at once.

  Source: [CUDA's stream-ordered
  allocator](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
  """

  @enforce_keys [:device, :total]
  defstruct [:device, :total, :free, :budget, others: 0] ++
              Enum.map(@owners, fn {name, _what} -> {name, 0} end)

  @typedoc "A ledger of one card; sizes in bytes."
  @type t :: %__MODULE__{
          device: String.t(),
          total: pos_integer,
          free: non_neg_integer | nil,
          budget: pos_integer | nil,
          others: non_neg_integer,
          weights: non_neg_integer,
          optimiser: non_neg_integer,
          sessions: non_neg_integer,
          loader: non_neg_integer,
          activations: non_neg_integer,
          cached: non_neg_integer
        }

  @doc false
  @spec of(Device.choice()) :: {:ok, t} | {:error, Error.t()}
  def of(choice) do
    with {:ok, device} <- card(choice, :ledger),
         {:ok, memory} <- Call.run(&Native.device_memory(&1, device.index)),
         do: {:ok, new(to_string(device), memory)}
  end

  @doc false
  @spec release(Device.choice()) :: {:ok, non_neg_integer} | {:error, Error.t()}
  def release(choice) do
    with {:ok, device} <- card(choice, :release),
         do: Call.run(&Native.device_release(&1, device.index))
  end

  @doc false
  # The ledger of a device, from its memory as the native side reports it.
  def new(device, memory), do: struct!(%__MODULE__{device: device, total: memory.total}, memory)

  @doc """
  Returns the bytes of all owners and of the cache together.

      iex> ledger = %Sconce.GPU.Ledger{device: "cuda:0", total: 24_000_000_000, weights: 40_000_000, cached: 10_000_000}
      iex> Sconce.GPU.Ledger.taken(ledger)
      50_000_000
  """
  @spec taken(t) :: non_neg_integer
  def taken(%__MODULE__{} = ledger),
    do: Enum.sum(for {name, _what} <- @owners, do: Map.fetch!(ledger, name))

  defp card(:cuda, op), do: card({:cuda, 0}, op)

  defp card({:cuda, index}, op) when index in 0..0xFFFF do
    with {:error, error} <- Device.resolve({:cuda, index}), do: {:error, %{error | op: op}}
  end

  defp card(other, _op),
    do: raise(ArgumentError, "expected :cuda or {:cuda, n}, got: #{inspect(other)}")

  defimpl String.Chars do
    alias Sconce.Figures

    def to_string(ledger) do
      names = [:weights, :optimiser, :sessions, :loader, :activations, :cached]

      case for name <- names, bytes = Map.fetch!(ledger, name), bytes > 0, do: {name, bytes} do
        [] -> "nothing"
        parts -> Enum.map_join(parts, ", ", fn {name, n} -> "#{name} #{Figures.size(n)}" end)
      end
    end
  end

  defimpl Inspect do
    alias Sconce.Figures
    alias Sconce.GPU.Ledger

    def inspect(ledger, _opts) do
      of = ledger.budget || ledger.total
      share = "#{Figures.size(Ledger.taken(ledger))} of #{Figures.size(of)}"
      free = if ledger.free, do: " · #{Figures.size(ledger.free)} free"
      "#Sconce.GPU.Ledger<#{ledger.device} · #{share}: #{ledger}#{free}>"
    end
  end
end
