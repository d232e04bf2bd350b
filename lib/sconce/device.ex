defmodule Sconce.Device do
  alias Sconce.{Config, Error, Native, Options}

  @causes [
    build: "this build has no CUDA: `bin/cuda-toolkit`, then `SCONCE_CUDA=1 mix compile`",
    driver: "NVIDIA's driver, `libcuda.so.1`",
    driver_version: "a driver of CUDA 13.0, which is 580, or newer",
    card: "a card of that number among those that the driver shows (`CUDA_VISIBLE_DEVICES`)",
    capability: "a card of compute capability 8.0 or newer",
    library:
      "a library of CUDA 13: cuBLAS, cuRAND, or of several cards NCCL 2 (`LD_LIBRARY_PATH`)",
    refused: "nothing that is known: the driver's own words are the `reason`"
  ]

  @moduledoc """
  Where weights live and work is done, as the option `:device` of policies, runs, sessions and servings says it:

  | `:device` | what it is |
  |---|---|
  | `:cpu` | the CPU |
  | `:cuda`, `{:cuda, n}` | NVIDIA's first card, or another by its number from 0 on |
  | `{:cuda, [0, 1]}` | several cards, of a run alone: see [Several cards](`m:Sconce.Trainer#module-several-cards`) |
  | `:auto` | the first card where it can be used, otherwise the CPU: decided once, and shown as `cpu (auto)` |
  | `nil` | what `Sconce.Config` says, the CPU by default |

  Nothing falls back in silence: whoever asks for a card that cannot be used gets an error of kind `:unavailable`,
  with a `reason`, what would `mend` it, and what is missing as `cause`:

  | `cause` | what is missing |
  |---|---|
  #{Enum.map_join(@causes, "\n", fn {name, meaning} -> "| `\"#{name}\"` | #{meaning} |" end)}

      iex> {:ok, device} = Sconce.Device.resolve(:cpu)
      iex> device
      #Sconce.Device<cpu>
  """

  @kinds [:cpu, :cuda, :auto, :rocm, :tpu]

  defstruct kind: :cpu, index: nil, auto: false, reason: nil

  @typedoc "`reason` is why `:auto` is not a card."
  @type t :: %__MODULE__{
          kind: :cpu | :cuda,
          index: non_neg_integer | [non_neg_integer] | nil,
          auto: boolean,
          reason: String.t() | nil
        }

  @typedoc "As an option says it."
  @type choice ::
          :cpu | :cuda | {:cuda, non_neg_integer | [non_neg_integer]} | :auto | :rocm | :tpu

  @doc """
  The device that a choice is on this machine, with this build; `nil` is that of `Sconce.Config`.

      iex> {:error, error} = Sconce.Device.resolve(:rocm)
      iex> Exception.message(error)
      "device: option :device: rocm is not part of Sconce (to mend it: device: :cpu)"

  `details` go into an error.
  """
  @spec resolve(choice | nil, map) :: {:ok, t} | {:error, Error.t()}
  def resolve(choice, details \\ %{what: "option :device"})

  def resolve(nil, details) do
    %{value: choice, source: source} = Config.fetch(:device)
    resolve(choice, %{details | what: Config.source_text(source)})
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

  # Whoever goes on to the card takes no more of it than is allowed now.
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

  # No improper list has a length.
  defp each_once!(indices), do: refuse!(indices)

  defp refuse!(indices) do
    expected = "cards by their numbers from 0 to 65535, each of them once"
    Options.argument!("device", indices, expected)
  end

  @doc false
  def kinds, do: @kinds

  @doc false
  # As `Sconce.Options` has it.
  def type, do: {:or, [{:in, @kinds}, cards(:non_neg_integer)]}

  @doc false
  # Of a run.
  def run_type, do: {:or, [type(), cards({:list, :non_neg_integer})]}

  defp cards(numbers), do: {:tuple, [{:in, [:cuda]}, numbers]}

  @doc false
  # The option of what has a device.
  def option(default \\ "that of `Sconce.Config`") do
    doc = "`:cpu`, `:cuda`, `{:cuda, n}` or `:auto`, see `Sconce.Device`; `nil` is #{default}."
    [device: [type: {:or, [type(), nil]}, default: nil, doc: doc]]
  end

  @doc false
  # That of a run.
  def run_option do
    doc =
      "`:cpu`, `:cuda`, `{:cuda, n}` or `:auto`, see `Sconce.Device`, or `{:cuda, [0, 1]}` for " <>
        "several cards, see above; `nil` is that of `Sconce.Config`."

    [device: [type: {:or, [run_type(), nil]}, default: nil, doc: doc]]
  end

  @doc false
  # Of a run that cannot go on where it was: it may on a CPU.
  def elsewhere(%Error{kind: :unavailable, details: %{what: "cuda" <> _, cause: _}} = error),
    do: %{error | details: refused(error.details, %{what: error.details.what}).details}

  def elsewhere(error), do: error

  @doc false
  # Whether they are one, whoever chose it.
  def same?(a, b), do: {a.kind, a.index} == {b.kind, b.index}

  @doc false
  # What is shown of it beside other things: nothing of a CPU that nobody had to choose.
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
