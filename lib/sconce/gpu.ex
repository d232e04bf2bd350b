defmodule Sconce.GPU do
  alias Sconce.{Device, Error, Native, Options}
  alias Sconce.GPU.{Diagnosis, Driver, Ledger}

  @warn [
    threshold: [type: :float, default: 0.85, min: 0, max: 1, doc: "Of the card's memory."]
  ]
  @free [
    required_mb: [type: :non_neg_integer, default: 0, doc: "What is to be free, in MiB."]
  ]
  @estimate [
    param_count: [type: :non_neg_integer, default: 1_000_000, doc: "Weights of the policy."],
    batch_size: [type: :pos_integer, default: 64, doc: "Windows in a step."],
    precision: [type: {:in, [:f32, :bf16, :f16]}, default: :bf16, doc: "Of the numbers."],
    temporal: [type: :boolean, default: false, doc: "Whether a window has frames."],
    window_size: [type: :pos_integer, default: 60, doc: "Frames of a window, if so."]
  ]

  cause_docs = fn {cause, {meaning, mend}} ->
    "| `:#{cause}` | #{meaning} | #{mend} |"
  end

  @moduledoc """
  NVIDIA's GPUs and their memory, as their driver tells (NVML, what `nvidia-smi` asks too). No process is
  started: a question takes microseconds to milliseconds.

  GPUs are numbered from 0 as `nvidia-smi` numbers them, by their place on the bus; 0 is meant where none is
  said. CUDA may number them otherwise, and hide some (`CUDA_VISIBLE_DEVICES`), which nothing here follows.
  Sizes in `mb` are MiB, 2^20 bytes, as `nvidia-smi` counts. Nothing is remembered between two questions.

      iex> Sconce.GPU.format_mb(24_564)
      "23.99 GB"

  On a machine with a GPU:

      {:ok, %{used_mb: 4521, total_mb: 24564, utilization: 0.18}} = Sconce.GPU.memory_status()
      {:ok, [%{index: 0, name: "NVIDIA GeForce RTX 4090"}]} = Sconce.GPU.list_devices()

  Whether policies run on one is another question, `available?/0`. What this VM has taken of a card, and for whom, is
  in `ledger/1`; `release/1` gives back what is not in use.

  ## Without a driver

  Every question has an error of kind `:unavailable` then, in microseconds, with a `cause` in its details and,
  where something does, what mends it. `diagnose/0` looks further.

      iex> Application.put_env(:sconce, :nvml, "/nowhere/libnvidia-ml.so.1")
      iex> {:error, error} = Sconce.GPU.memory_status()
      iex> {error.kind, error.details.cause, error.details.mend}
      {:unavailable, :no_library, "mix sconce.doctor"}
      iex> Sconce.GPU.memory_status_string()
      "GPU: N/A"
      iex> Application.delete_env(:sconce, :nvml)
      :ok

  | cause | what it is | what mends it |
  |---|---|---|
  #{Enum.map_join(Driver.causes(), "\n", cause_docs)}

  Other kinds: `:not_found` of a GPU that is not there, `:deadline` of a driver that does not answer within ten
  seconds, `:busy` when too many already wait for it. A driver that comes later is found; one that refused is
  asked again after a second.

  The driver's library is looked for where the system's loader looks, and in the folders where containers,
  WSL and NixOS have it. `SCONCE_NVML`, or `config :sconce, nvml: path`, names another one, see `Sconce.Config`.

  Source: [NVIDIA's NVML reference](https://docs.nvidia.com/deploy/nvml-api/). Not run on a GPU yet: tests
  ask a library that stands in for the driver's.
  """

  @typedoc "The number of a GPU, from 0."
  @type index :: non_neg_integer

  @typedoc """
  What a GPU is. `compute_capability` is major and minor number as CUDA has it; `mig` says that the card is
  cut into instances, which CUDA sees in its place. Of one that does not answer all but `index` and `error` is
  nil.
  """
  @type device :: %{
          index: index,
          name: String.t() | nil,
          memory_mb: non_neg_integer | nil,
          uuid: String.t() | nil,
          pci_bus_id: String.t() | nil,
          compute_capability: {non_neg_integer, non_neg_integer} | nil,
          mig: boolean | nil,
          error: Error.t() | nil
        }

  defguardp is_index(index) when index in 0..0xFFFF

  @doc """
  Whether policies run on a GPU with this build, on this machine: `Sconce.Device` and `diagnose/0` say what is
  missing.
  """
  @spec available?() :: boolean
  def available?, do: computes() == :ok

  @doc false
  # `:ok`, or why nothing computes on a GPU here.
  def computes, do: with({:ok, _card} <- Device.resolve(:cuda), do: :ok)

  @doc "How many GPUs the driver has."
  @spec device_count() :: {:ok, non_neg_integer} | {:error, Error.t()}
  def device_count, do: Driver.ask(:device_count, &Native.gpu_count/2)

  @doc """
  All GPUs in their order, also those that do not answer: their `error` says why.
  """
  @spec list_devices() :: {:ok, [device]} | {:error, Error.t()}
  def list_devices do
    with {:ok, count} <- Driver.ask(:list_devices, &Native.gpu_count/2),
         do: {:ok, for(index <- 0..(count - 1)//1, do: listed(index))}
  end

  @doc "One of `list_devices/0`."
  @spec device_info(index) :: {:ok, device} | {:error, Error.t()}
  def device_info(index \\ 0), do: card(:device_info, index)

  @doc "The name, as in `{:ok, \"NVIDIA H200\"}`."
  @spec device_name(index) :: {:ok, String.t()} | {:error, Error.t()}
  def device_name(index \\ 0) do
    with {:ok, device} <- card(:device_name, index), do: {:ok, device.name}
  end

  @doc """
  How full the memory is: `{:ok, %{used_mb: 4521, total_mb: 24564, utilization: 0.18}}`, where `utilization` is
  the used share of it, 0.0 to 1.0, with two decimals.
  """
  @spec memory_status(index) ::
          {:ok, %{used_mb: non_neg_integer, total_mb: non_neg_integer, utilization: float}}
          | {:error, Error.t()}
  def memory_status(index \\ 0) do
    with {:ok, memory} <- memory(:memory_status, index) do
      share = Float.round(memory.used_mb / max(memory.total_mb, 1), 2)
      {:ok, %{used_mb: memory.used_mb, total_mb: memory.total_mb, utilization: share}}
    end
  end

  @doc """
  The memory by its use, and how busy the GPU is: `used_mb`, `free_mb`, `total_mb`, `reserved_mb`, which the
  driver keeps for itself beside what is used, and `utilization`, percent as in `utilization/1`, which is nil of
  a card that does not tell.
  """
  @spec get_memory_info(index) ::
          {:ok,
           %{
             used_mb: non_neg_integer,
             free_mb: non_neg_integer,
             total_mb: non_neg_integer,
             reserved_mb: non_neg_integer,
             utilization: 0..100 | nil
           }}
          | {:error, Error.t()}
  def get_memory_info(index \\ 0) do
    with {:ok, memory} <- memory(:get_memory_info, index),
         {:ok, busy} <- busy(index),
         do: {:ok, Map.put(memory, :utilization, busy)}
  end

  @doc """
  `get_memory_info/1` for a progress line: `"GPU: 4.4/24.0 GB (18%) | Util: 45%"`, and `"GPU: N/A"` where
  there is no answer.
  """
  @spec memory_status_string(index) :: String.t()
  def memory_status_string(index \\ 0) do
    case get_memory_info(index) do
      {:ok, memory} -> "GPU: #{filled(memory)}#{busy_text(memory.utilization)}"
      {:error, _error} -> "GPU: N/A"
    end
  end

  @doc """
  Warns of a GPU whose memory is nearly full.

  #{Options.docs(@warn)}
  """
  @spec check_memory_warning(keyword, index) ::
          :ok | {:warning, String.t()} | {:error, Error.t()}
  def check_memory_warning(opts \\ [], index \\ 0) do
    threshold = Options.validate!(opts, @warn)[:threshold]

    with {:ok, memory} <- memory(:check_memory_warning, index) do
      if memory.used_mb < threshold * memory.total_mb,
        do: :ok,
        else: {:warning, "GPU #{index} is nearly full, #{filled(memory)}: #{smaller()}"}
    end
  end

  @doc """
  Warns of a GPU that has less memory free than wanted.

  #{Options.docs(@free)}
  """
  @spec check_free_memory(keyword, index) :: :ok | {:warning, String.t()} | {:error, Error.t()}
  def check_free_memory(opts \\ [], index \\ 0) do
    required = Options.validate!(opts, @free)[:required_mb]

    with {:ok, %{free_mb: free}} <- memory(:check_free_memory, index) do
      figures = "#{format_mb(free)} free on GPU #{index}, #{format_mb(required)} wanted"

      if free >= required,
        do: :ok,
        else: {:warning, "#{figures}: #{smaller()}, or end others (Sconce.GPU.processes/1)"}
    end
  end

  defp smaller, do: "a smaller batch_size takes less"

  @doc """
  What this VM has of a card's memory, by owner: a `Sconce.GPU.Ledger`.

  A card is meant as CUDA numbers them and as the option `:device` names it, `:cuda` or `{:cuda, n}`. One that
  nothing was on yet has nothing in its ledger, and is not opened for that.

      {:ok, ledger} = Sconce.GPU.ledger()
      #Sconce.GPU.Ledger<cuda:0 · 3.1 GB of 24.0 GB: weights 40.0 MB, optimiser 80.0 MB, activations 2.1 GB, cached 900.0 MB · 20.4 GB free>

  Kind of error: `:unavailable`, as of `Sconce.Device`.
  """
  @spec ledger(Device.choice()) :: {:ok, Ledger.t()} | {:error, Error.t()}
  def ledger(device \\ :cuda), do: Ledger.of(device)

  @doc """
  Gives what of a card's memory is taken and not in use back to the driver, for other programs: `{:ok, bytes}`. It
  waits for all work of this VM there, and that work then takes its memory anew.

  Kind of error: `:unavailable`, as of `Sconce.Device`.
  """
  @spec release(Device.choice()) :: {:ok, non_neg_integer} | {:error, Error.t()}
  def release(device \\ :cuda), do: Ledger.release(device)

  @doc """
  A rule of thumb for the memory of a training step on a GPU, in MiB.

  Four numbers a weight (itself, its gradient, two moments) and ten thousand a frame, in the bytes of the
  precision, and a fifth on top: ExPhil's rule, with its names and defaults. `Sconce.Trainer.plan/2` measures
  instead, on the CPU.

  #{Options.docs(@estimate)}

      iex> Sconce.GPU.estimate_memory_mb(param_count: 5_000_000, batch_size: 256, temporal: true)
      397
  """
  @spec estimate_memory_mb(keyword) :: non_neg_integer
  def estimate_memory_mb(opts \\ []) do
    opts = Options.validate!(opts, @estimate)
    frames = if opts[:temporal], do: opts[:window_size], else: 1
    numbers = 4 * opts[:param_count] + 10_000 * opts[:batch_size] * frames
    bytes = if opts[:precision] == :f32, do: 4, else: 2
    round(1.2 * numbers * bytes / 1_048_576)
  end

  @doc """
  Percent of the last sixth of a second to second in which kernels ran (`gpu`), and in which memory was read or
  written (`memory`). A card that is cut into instances does not tell.
  """
  @spec utilization(index) :: {:ok, %{gpu: 0..100, memory: 0..100}} | {:error, Error.t()}
  def utilization(index \\ 0), do: ask(:utilization, index, &Native.gpu_utilization/2)

  @doc "Of the chip, in degrees Celsius."
  @spec temperature(index) :: {:ok, non_neg_integer} | {:error, Error.t()}
  def temperature(index \\ 0), do: ask(:temperature, index, &Native.gpu_temperature/2)

  @doc "What the card takes, and what it is held to, nil where it does not tell."
  @spec power(index) ::
          {:ok, %{draw_watts: float, limit_watts: float | nil}} | {:error, Error.t()}
  def power(index \\ 0), do: ask(:power, index, &Native.gpu_power/2)

  @doc """
  The clocks at present and at most, in MHz: `graphics_mhz`, `sm_mhz`, `memory_mhz`, `max_graphics_mhz`,
  `max_sm_mhz`, `max_memory_mhz`; nil where the card does not tell.
  """
  @spec clocks(index) :: {:ok, %{atom => pos_integer | nil}} | {:error, Error.t()}
  def clocks(index \\ 0), do: ask(:clocks, index, &Native.gpu_clocks/2)

  @doc """
  Who uses the GPU, by process id. `name` is nil of a process that this one may not see, as of another
  container, and `memory_mb` where the driver does not tell; `types` are `:compute`, `:graphics` or both;
  `mig_instance` is that of a card cut into instances.
  """
  @spec processes(index) ::
          {:ok,
           [
             %{
               pid: pos_integer,
               name: String.t() | nil,
               memory_mb: non_neg_integer | nil,
               types: [:compute | :graphics],
               mig_instance: non_neg_integer | nil
             }
           ]}
          | {:error, Error.t()}
  def processes(index \\ 0) do
    with {:ok, found} <- ask(:processes, index, &Native.gpu_processes/2),
         do: {:ok, Enum.map(found, &process/1)}
  end

  @doc """
  Versions of `driver`, `nvml` and `cuda`, the newest CUDA that the driver runs, which is nil where its
  library for CUDA is missing; `library` is the file that answers.
  """
  @spec versions() :: {:ok, %{atom => String.t() | nil}} | {:error, Error.t()}
  def versions, do: Driver.ask(:versions, &Native.gpu_versions/2)

  @doc """
  Follows the way from the card to this build and explains where it ends: `IO.puts(Sconce.GPU.diagnose())`.
  """
  @spec diagnose() :: Diagnosis.t()
  def diagnose, do: Diagnosis.new()

  @doc """
  A size of so many MiB.

      iex> {Sconce.GPU.format_mb(512), Sconce.GPU.format_mb(1536)}
      {"512 MB", "1.50 GB"}
  """
  @spec format_mb(non_neg_integer) :: String.t()
  def format_mb(mb) when mb in 0..1023, do: "#{mb} MB"
  def format_mb(mb) when mb in 1024..0xFFFF_FFFF_FFFF, do: "#{decimals(mb / 1024, 2)} GB"
  def format_mb(other), do: Options.argument!("mb", other, "a number of MiB")

  defp ask(op, index, question) when is_index(index),
    do: Driver.ask(op, &question.(&1, {&2, index}))

  defp ask(_op, other, _question),
    do: raise(ArgumentError, "expected a GPU by its number, 0 or more, got: #{inspect(other)}")

  defp memory(op, index) do
    with {:ok, bytes} <- ask(op, index, &Native.gpu_memory/2) do
      {:ok,
       %{
         used_mb: mb(bytes.used),
         free_mb: mb(bytes.free),
         total_mb: mb(bytes.total),
         reserved_mb: mb(bytes.reserved)
       }}
    end
  end

  defp busy(index) do
    case ask(:get_memory_info, index, &Native.gpu_utilization/2) do
      {:ok, %{gpu: percent}} -> {:ok, percent}
      {:error, %Error{details: %{cause: :not_supported}}} -> {:ok, nil}
      {:error, error} -> {:error, error}
    end
  end

  defp card(op, index) do
    with {:ok, card} <- ask(op, index, &Native.gpu_card/2) do
      {bytes, card} = Map.pop!(card, :memory_bytes)
      capability = if of = card.compute_capability, do: List.to_tuple(of)
      known = %{memory_mb: mb(bytes), compute_capability: capability, error: nil}
      {:ok, Map.merge(card, known)}
    end
  end

  @unknown Map.new(
             [:name, :memory_mb, :uuid, :pci_bus_id, :compute_capability, :mig],
             &{&1, nil}
           )

  defp listed(index) do
    case card(:list_devices, index) do
      {:ok, device} -> device
      {:error, error} -> Map.merge(@unknown, %{index: index, error: error})
    end
  end

  defp process(found) do
    types = for type <- [:compute, :graphics], found[type], do: type
    bytes = found.memory_bytes

    found
    |> Map.take([:pid, :name, :mig_instance])
    |> Map.merge(%{types: types, memory_mb: bytes && mb(bytes)})
  end

  defp mb(bytes), do: div(bytes, 1_048_576)

  defp filled(%{used_mb: used, total_mb: total}) do
    percent = round(100 * used / max(total, 1))
    "#{decimals(used / 1024, 1)}/#{decimals(total / 1024, 1)} GB (#{percent}%)"
  end

  defp busy_text(nil), do: ""
  defp busy_text(percent), do: " | Util: #{percent}%"

  defp decimals(number, digits), do: :erlang.float_to_binary(number, decimals: digits)
end
