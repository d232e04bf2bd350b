defmodule Sconce.GPU.Ledger do
  alias Sconce.{Device, Error, Native}
  alias Sconce.Native.Call

  @owners [
    weights: "policies",
    optimiser: "moments and averages of runs",
    sessions: "states of games, and what steps them",
    loader: "batches that wait on the card for their step, of which there are none yet",
    activations:
      "work under way: what a backward pass reads again, gradients, what libraries work in",
    cached: "taken from the driver and not in use: `Sconce.GPU.release/1` gives it back"
  ]

  @moduledoc """
  The memory of a card that this VM has opened, by owner, in bytes:

  | | what is in it |
  |---|---|
  #{Enum.map_join(@owners, "\n", fn {name, what} -> "| `#{name}` | #{what} |" end)}

  `total` and `free` are the card's, `free` of an opened card only; `others` is what neither is free nor in the
  ledger: other programs, other libraries of this VM, and what CUDA itself keeps, some hundred MB. `budget` is what
  all of the ledger may be together, `nil` without a limit.

      iex> ledger = %Sconce.GPU.Ledger{device: "cuda:0", total: 24_000_000_000, free: 20_000_000_000,
      ...>   weights: 40_000_000, optimiser: 80_000_000, activations: 2_100_000_000, cached: 900_000_000}
      iex> to_string(ledger)
      "weights 40.0 MB, optimiser 80.0 MB, activations 2.1 GB, cached 900.0 MB"

  ## When memory is taken and given back

  Nothing is taken before it is needed. What is freed beside policies and sessions goes back to the driver but for
  256 MiB; while a run is under way all of it is kept for the next step; and once nothing of this VM is on the card,
  nothing is kept but the context, the libraries, and a few KB of how recorded work
  read its operands. A policy leaves the card when no process has it any more, a
  session with its owner, a run with its process.

  ## How much

  `Sconce.Config` has `memory_fraction` and `memory_budget`, of which the lesser counts. They are read whenever a
  device is chosen, and hold for a card from when it is opened; others count once none of its memory is in use.

  More is an error of kind `:out_of_memory` and never the end of the VM. Its `details` have the `memory` (as here),
  `bytes` where it is known what was asked for, `remedies`, and these in a sentence as `mend`. A step of a
  run that has too little is made again with half as many windows at a time, see `Sconce.Trainer`.

  ## Beside EXLA

  Each card has a pool of memory of its own in the driver, made when it is opened
  (`cuMemPoolCreate`), which becomes the card's current one. EXLA takes its memory at once when it starts and keeps
  it: its `memory_fraction` and Sconce's go beside each other if their sum is below 1, and it needs
  `preallocate: false` where they shall share. Training steps that are recorded as CUDA graphs have memory of their
  own in the driver, which counts as `activations` and within the budget; recorded decisions work in memory that
  counts as `sessions`, for each power of two of games that were stepped at once.

  Source: [CUDA's stream-ordered allocator](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
  Not run on a GPU yet: tests use the emulated card.
  """

  @enforce_keys [:device, :total]
  defstruct [:device, :total, :free, :budget, others: 0] ++
              Enum.map(@owners, fn {name, _what} -> {name, 0} end)

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
  # Of a device's memory as the native side tells it.
  def new(device, memory), do: struct!(%__MODULE__{device: device, total: memory.total}, memory)

  @doc "What owners have, and what is cached, together."
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
