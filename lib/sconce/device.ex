defmodule Sconce.Device do
  alias Sconce.{Config, Error, Native, Options}

  @causes [
    build: "this build has no CUDA: `bin/cuda-toolkit`, then `SCONCE_CUDA=1 mix compile`",
    driver: "NVIDIA's driver, `libcuda.so.1`",
    driver_version: "a driver for CUDA 13.0: version 580 or newer",
    card: "a card with that number among the cards that CUDA shows (`CUDA_VISIBLE_DEVICES`)",
    capability: "a card of compute capability 8.0 or newer",
    library:
      "a library of CUDA 13: cuBLAS, cuRAND, or, for several cards, NCCL 2 (`LD_LIBRARY_PATH`)",
    refused: "unknown; `reason` is the driver's own message"
  ]

  @moduledoc """
  The device that holds weights and computes, chosen by the option `:device` of policies, runs, sessions and
  servings:

  | `:device` | device |
  |---|---|
  | `:cpu` | the CPU |
  | `:cuda`, `{:cuda, n}` | the first NVIDIA card, or card `n`, counted from 0 |
  | `{:cuda, [0, 1]}` | several cards, for a run only: see [Several cards](`m:Sconce.Trainer#module-several-cards`) |
  | `:auto` | the first card if it can be used, otherwise the CPU; decided once, and shown as `cpu (auto)` |
  | `nil` | the device of `Sconce.Config`, by default the CPU; of several cards the first, except for a run |

  A choice never falls back silently. If a card was asked for and cannot be used, the result is an error of kind
  `:unavailable`. Its details hold the `reason`, a remedy (`mend`), and the missing part as `cause`:

  | `cause` | what is missing |
  |---|---|
  #{Enum.map_join(@causes, "\n", fn {name, meaning} -> "| `\"#{name}\"` | #{meaning} |" end)}

      iex> {:ok, device} = Sconce.Device.resolve(:cpu)
      iex> device
      #Sconce.Device<cpu>
  """

  @kinds [:cpu, :cuda, :auto, :rocm, :tpu]

  defstruct kind: :cpu, index: nil, auto: false, reason: nil

  @typedoc "A resolved device. `reason` says why `:auto` did not choose a card."
  @type t :: %__MODULE__{
          kind: :cpu | :cuda,
          index: non_neg_integer | [non_neg_integer] | nil,
          auto: boolean,
          reason: String.t() | nil
        }

  @typedoc "A value of the option `:device`."
  @type choice ::
          :cpu | :cuda | {:cuda, non_neg_integer | [non_neg_integer]} | :auto | :rocm | :tpu

  @doc """
  Resolves a choice to a device of this machine and this build; `nil` is the choice of `Sconce.Config`.

      iex> {:error, error} = Sconce.Device.resolve(:rocm)
      iex> Exception.message(error)
      "device: option :device: rocm is not part of Sconce (to mend it: device: :cpu)"

  `details` are merged into the details of an error.
  """
  @spec resolve(choice | nil, map) :: {:ok, t} | {:error, Error.t()}
  def resolve(choice, details \\ %{what: "option :device"})

  def resolve(nil, details) do
    {choice, details} = configured(details)
    resolve(first(choice), details)
  end

  def resolve(:cpu, _details), do: {:ok, %__MODULE__{}}

  def resolve(:auto, _details) do
    case usable([0]) do
      :ok -> {:ok, %__MODULE__{kind: :cuda, index: 0, auto: true}}
      {:error, error} -> {:ok, %__MODULE__{auto: true, reason: error.details.reason}}
    end
  end

  def resolve(:cuda, details), do: resolve({:cuda, 0}, details)

  def resolve({:cuda, [index]}, details), do: resolve({:cuda, index}, details)

  def resolve({:cuda, index}, details) do
    indices = each_once!(if(is_list(index), do: index, else: [index]))

    case usable(indices) do
      :ok -> {:ok, %__MODULE__{kind: :cuda, index: index}}
      {:error, error} -> {:error, refused(error.details, details)}
    end
  end

  def resolve(other, details) do
    [device: kind] = Options.validate!([device: other], device: [type: {:in, @kinds}])
    {:error, refused(%{reason: "#{kind} is not part of Sconce"}, details)}
  end

  @doc false
  # Resolves the device of a training run, which may have several cards.
  @spec resolve_run(choice | nil, map) :: {:ok, t} | {:error, Error.t()}
  def resolve_run(choice, details \\ %{what: "option :device"})

  def resolve_run(nil, details) do
    {choice, details} = configured(details)
    resolve(choice, details)
  end

  def resolve_run(choice, details), do: resolve(choice, details)

  defp configured(details) do
    %{value: choice, source: source} = Config.fetch(:device)
    {choice, %{details | what: Config.source_text(source)}}
  end

  defp first({:cuda, [index | _]}), do: {:cuda, index}
  defp first(choice), do: choice

  # Applies the current memory limits before the card is used.
  defp usable(indices) do
    with :ok <- Native.device_check(indices) do
      Native.device_allow(%{
        fraction: Config.get(:memory_fraction),
        bytes: Config.get(:memory_budget)
      })
    end
  end

  defp each_once!(indices) when length(indices) >= 0 do
    card? = &(is_integer(&1) and &1 in 0..0xFFFF)

    (length(indices) > 0 and Enum.all?(indices, card?) and indices == Enum.uniq(indices)) ||
      refuse!(indices)

    indices
  end

  # An improper list has no length.
  defp each_once!(indices), do: refuse!(indices)

  defp refuse!(indices) do
    expected = "numbers of cards from 0 to 65535, each once"
    Options.argument!("device", indices, expected)
  end

  @doc false
  def kinds, do: @kinds

  @doc false
  # The type of the option `:device`, in the form of `Sconce.Options`.
  def type, do: {:or, [{:in, @kinds}, cards(:non_neg_integer)]}

  @doc false
  # The type of the option `:device` of a training run.
  def run_type, do: {:or, [type(), cards({:list, :non_neg_integer})]}

  defp cards(numbers), do: {:tuple, [{:in, [:cuda]}, numbers]}

  @doc false
  # The option `:device` of policies, sessions and servings.
  def option(default \\ "the device of `Sconce.Config`") do
    doc = "`:cpu`, `:cuda`, `{:cuda, n}` or `:auto`, see `Sconce.Device`; `nil` is #{default}."
    [device: [type: {:or, [type(), nil]}, default: nil, doc: doc]]
  end

  @doc false
  # The option `:device` of a training run.
  def run_option do
    doc =
      "`:cpu`, `:cuda`, `{:cuda, n}` or `:auto`, see `Sconce.Device`, or `{:cuda, [0, 1]}` for " <>
        "several cards, see above; `nil` is the device of `Sconce.Config`."

    [device: [type: {:or, [run_type(), nil]}, default: nil, doc: doc]]
  end

  @doc false
  # The error of a run that cannot resume on its card, with the remedy to resume on the CPU.
  def elsewhere(%Error{kind: :unavailable, details: %{what: "cuda" <> _, cause: _}} = error),
    do: %{error | details: refused(error.details, %{what: error.details.what}).details}

  def elsewhere(error), do: error

  @doc false
  # Whether `a` and `b` are the same device, even if `:auto` chose only one of them.
  def same?(a, b), do: {a.kind, a.index} == {b.kind, b.index}

  @doc false
  # The suffix that `Inspect` shows: empty for a CPU that was not chosen by `:auto`.
  def aside(device) when device in [nil, %__MODULE__{}], do: ""
  def aside(device), do: " · #{device}"

  defp refused(cause, details) do
    mend = Enum.join(List.wrap(cause[:mend]) ++ ["device: :cpu"], ", or ")
    details = cause |> Map.drop([:what]) |> Map.merge(details) |> Map.put(:mend, mend)
    %Error{kind: :unavailable, op: :device, details: details}
  end

  defimpl String.Chars do
    def to_string(%{kind: kind, index: index, auto: auto}) do
      cards = if index, do: ":" <> (index |> List.wrap() |> Enum.join(","))
      "#{kind}#{cards}#{if auto, do: " (auto)"}"
    end
  end

  defimpl Inspect do
    def inspect(%{reason: nil} = device, _opts), do: "#Sconce.Device<#{device}>"

    def inspect(device, _opts),
      do: Sconce.Text.printable("#Sconce.Device<#{device}: #{device.reason}>")
  end
end
