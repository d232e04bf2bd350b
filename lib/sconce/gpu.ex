defmodule Sconce.GPU do
  alias Sconce.{Config, Device, Error, Native, Options}
  alias Sconce.GPU.{Card, Catalogue, Diagnosis, Driver, Estimate, Ledger, Memory, Params}

  cause_docs = fn {cause, {meaning, mend}} ->
    "| `:#{cause}` | #{meaning} | #{mend} |"
  end

  @moduledoc """
  NVIDIA GPUs and their memory, as reported by the driver through NVML, the library of `nvidia-smi`.

  Queries start no process and take microseconds to milliseconds; nothing is cached between two queries. GPUs are
  numbered from 0, like in `nvidia-smi`, and 0 is the default. CUDA may number them differently and hide some of them
  (`CUDA_VISIBLE_DEVICES`); queries ignore that. Sizes in `mb` are MiB, 2^20 bytes.

      iex> Sconce.GPU.format_mb(24_564)
      "23.99 GB"

  On a machine with a GPU:

      {:ok, %{used_mb: 4521, total_mb: 24564, utilization: 0.18}} = Sconce.GPU.memory_status()
      {:ok, [%{index: 0, name: "NVIDIA GeForce RTX 4090"}]} = Sconce.GPU.list_devices()

  `available?/0` returns whether policies run on a GPU. `ledger/1` returns the memory that this VM has taken on a card,
  by owner, and `release/1` returns unused memory to the driver. The guide [NVIDIA cards](cards.html) covers the build,
  devices and memory.

  ## Without a driver

  Every query is an error of kind `:unavailable`, within microseconds. Its details hold a `cause` and, if there is one,
  a remedy as `mend`. `diagnose/0` searches further.

      iex> Application.put_env(:sconce, :nvml, "/nowhere/libnvidia-ml.so.1")
      iex> {:error, error} = Sconce.GPU.memory_status()
      iex> {error.kind, error.details.cause, error.details.mend}
      {:unavailable, :no_library, "mix sconce.doctor"}
      iex> Sconce.GPU.memory_status_string()
      "GPU: N/A"
      iex> Application.delete_env(:sconce, :nvml)
      :ok

  | cause | meaning | remedy |
  |---|---|---|
  #{Enum.map_join(Driver.causes(), "\n", cause_docs)}

  Other kinds: `:not_found` if the GPU does not exist, `:deadline` if the driver does not answer within ten seconds, and
  `:busy` if too many callers already wait for the driver. A driver that is installed later is found without a restart.
  After a failed start of NVML, Sconce waits one second before it tries again.

  NVML is searched in the paths of the system's loader, and in the folders of containers, WSL and NixOS. `SCONCE_NVML`
  or `config :sconce, nvml: path` names another file, see `Sconce.Config`.

  Source: [NVIDIA's NVML reference](https://docs.nvidia.com/deploy/nvml-api/).
  """

  @typedoc "The number of a GPU, from 0."
  @type index :: non_neg_integer

  @typedoc """
  Properties of a GPU. `compute_capability` is CUDA's major and minor number. If `mig` is true, the card is split into
  MIG instances, which CUDA uses instead of the card. If a GPU does not answer, every field except `index` and `error`
  is nil.
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

  @doc """
  Returns whether policies run on a GPU, with this build on this machine. If not, `diagnose/0` explains why.

      iex> Sconce.GPU.available?() == match?({:ok, _device}, Sconce.Device.resolve(:cuda))
      true
  """
  @spec available?() :: boolean
  def available?, do: computes() == :ok

  @doc """
  Returns whether the driver reports a GPU. The build may lack CUDA nevertheless: `available?/0` returns whether policies
  run on a GPU.

      iex> Sconce.GPU.gpu_available?() == match?({:ok, count} when count > 0, Sconce.GPU.device_count())
      true
  """
  @spec gpu_available?() :: boolean
  def gpu_available?, do: match?({:ok, count} when count > 0, device_count())

  @doc """
  Returns the tags that `ExUnit` excludes on this machine: `[]` if policies run on a GPU, otherwise `[:gpu]`.

  An app writes it into `test/test_helper.exs`, and its tests with the tag `:gpu` run exactly where a card is usable:

      ExUnit.start(exclude: Sconce.GPU.exunit_exclude())

  `EXPHIL_GPU` overrides what was found: `1` excludes nothing, `0` excludes `:gpu`. Another value raises
  `ArgumentError`.

      iex> Sconce.GPU.exunit_exclude() == if(Sconce.GPU.available?(), do: [], else: [:gpu])
      true
  """
  @spec exunit_exclude() :: [:gpu]
  def exunit_exclude do
    usable? =
      case Config.card_forced?() do
        nil -> available?()
        forced? -> forced?
      end

    if usable?, do: [], else: [:gpu]
  end

  @doc false
  # `:ok`, or the error that says why policies do not run on a GPU.
  def computes, do: with({:ok, _card} <- Device.resolve(:cuda), do: :ok)

  @doc """
  Returns the number of GPUs that the driver reports.

      iex> case Sconce.GPU.device_count() do
      ...>   {:ok, count} -> count >= 0
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
  """
  @spec device_count() :: {:ok, non_neg_integer} | {:error, Error.t()}
  def device_count, do: Driver.ask(:device_count, &Native.gpu_count/2)

  @doc """
  Returns all GPUs in order, including those that do not answer: the `error` of such a GPU has the reason.

      iex> case Sconce.GPU.list_devices() do
      ...>   {:ok, devices} -> Enum.all?(devices, &is_map_key(&1, :memory_mb))
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
  """
  @spec list_devices() :: {:ok, [device]} | {:error, Error.t()}
  def list_devices do
    with {:ok, count} <- Driver.ask(:list_devices, &Native.gpu_count/2),
         do: {:ok, for(index <- 0..(count - 1)//1, do: Card.listed(index))}
  end

  @doc """
  Returns one GPU, with the fields of `list_devices/0`.

      iex> case Sconce.GPU.device_info(0) do
      ...>   {:ok, device} -> device.index == 0
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
  """
  @spec device_info(index) :: {:ok, device} | {:error, Error.t()}
  def device_info(index \\ 0), do: Card.card(:device_info, index)

  @doc """
  Returns the name of a GPU, such as `{:ok, "NVIDIA H200"}`.

      iex> case Sconce.GPU.device_name(0) do
      ...>   {:ok, name} -> is_binary(name)
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
  """
  @spec device_name(index) :: {:ok, String.t()} | {:error, Error.t()}
  def device_name(index \\ 0) do
    with {:ok, device} <- Card.card(:device_name, index), do: {:ok, device.name}
  end

  @doc """
  Returns the used memory: `{:ok, %{used_mb: 4521, total_mb: 24564, utilization: 0.18}}`. `utilization` is the used
  fraction, 0.0 to 1.0, with two decimals.

      iex> case Sconce.GPU.memory_status() do
      ...>   {:ok, memory} -> memory.used_mb <= memory.total_mb
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
  """
  @spec memory_status(index) ::
          {:ok, %{used_mb: non_neg_integer, total_mb: non_neg_integer, utilization: float}}
          | {:error, Error.t()}
  def memory_status(index \\ 0), do: Memory.status(index)

  @doc """
  Returns the memory by use, and the load of the GPU.

  `reserved_mb` is memory that the driver reserves for itself, in addition to `used_mb`. `utilization` is the percentage
  of `utilization/1`, or nil if the card does not report it.

      iex> case Sconce.GPU.get_memory_info() do
      ...>   {:ok, memory} -> memory.free_mb <= memory.total_mb
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
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
  def get_memory_info(index \\ 0), do: Memory.info(index)

  @doc """
  Formats `get_memory_info/1` for a progress line: `"GPU: 4.4/24.0 GB (18%) | Util: 45%"`, or `"GPU: N/A"` without an
  answer.

      iex> String.starts_with?(Sconce.GPU.memory_status_string(), "GPU: ")
      true
  """
  @spec memory_status_string(index) :: String.t()
  def memory_status_string(index \\ 0), do: Memory.line(index)

  @doc """
  Returns a warning if the memory of a GPU is nearly full.

  #{Catalogue.docs(:warn)}

      iex> case Sconce.GPU.check_memory_warning(threshold: 0.9) do
      ...>   :ok -> true
      ...>   {:warning, text} -> text =~ "nearly full"
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
  """
  @spec check_memory_warning(keyword, index) ::
          :ok | {:warning, String.t()} | {:error, Error.t()}
  def check_memory_warning(opts \\ [], index \\ 0), do: Memory.full(opts, index)

  @doc """
  Returns a warning if a GPU has less free memory than needed.

  #{Catalogue.docs(:free)}

      iex> case Sconce.GPU.check_free_memory(required_mb: 400) do
      ...>   :ok -> true
      ...>   {:warning, text} -> text =~ "400 MB needed"
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
  """
  @spec check_free_memory(keyword, index) :: :ok | {:warning, String.t()} | {:error, Error.t()}
  def check_free_memory(opts \\ [], index \\ 0), do: Memory.short(opts, index)

  @doc """
  Returns the memory that this VM has taken on a card, by owner, as a `Sconce.GPU.Ledger`.

  The card is given like the option `:device`, `:cuda` or `{:cuda, n}`, with CUDA's numbers. The ledger of an unused
  card is empty, and this call does not open the card.

      Sconce.GPU.ledger()
      {:ok, #Sconce.GPU.Ledger<cuda:0 · 3.1 GB of 24.0 GB: weights 40.0 MB, optimiser 80.0 MB, activations 2.1 GB, cached 900.0 MB · 20.4 GB free>}

  The error is of kind `:unavailable`, as in `Sconce.Device`.

      iex> case Sconce.GPU.ledger() do
      ...>   {:ok, ledger} -> ledger.device == "cuda:0"
      ...>   {:error, error} -> error.kind == :unavailable
      ...> end
      true
  """
  @spec ledger(Device.choice()) :: {:ok, Ledger.t()} | {:error, Error.t()}
  def ledger(device \\ :cuda), do: Ledger.of(device)

  @doc """
  Returns the unused memory of this VM on a card to the driver, for other programs: `{:ok, bytes}`.

  The call waits for all work of this VM on the card. Later work allocates its memory again. The error is of kind
  `:unavailable`, as in `Sconce.Device`.

      iex> case Sconce.GPU.release() do
      ...>   {:ok, bytes} -> bytes >= 0
      ...>   {:error, error} -> error.kind == :unavailable
      ...> end
      true
  """
  @spec release(Device.choice()) :: {:ok, non_neg_integer} | {:error, Error.t()}
  def release(device \\ :cuda), do: Ledger.release(device)

  @doc """
  Estimates the memory of a training step on a GPU by a rule of thumb, in MiB.

  The rule is ExPhil's, with its names and defaults: four values for each weight (weight, gradient, two moments) and
  ten thousand values for each frame, at the size of the precision, plus 20 %. `Sconce.Trainer.plan/2` measures instead,
  on the CPU.

  #{Catalogue.docs(:estimate)}

      iex> Sconce.GPU.estimate_memory_mb(param_count: 5_000_000, batch_size: 256, temporal: true)
      397
  """
  @spec estimate_memory_mb(keyword) :: non_neg_integer
  def estimate_memory_mb(opts \\ []), do: Estimate.step_mb(opts)

  @doc """
  Returns the number of weights of a `Sconce.Policy`, or of tensors in maps, lists and tuples of any nesting. A tensor is
  an Nx tensor, or a map of `data`, `shape` and `type`.

      iex> bias = %{data: <<0::size(96)>>, shape: {3}, type: {:f, 32}}
      iex> Sconce.GPU.count_params(%{dense: %{kernel: %{bias | shape: {3, 4}}, bias: bias}})
      15
  """
  @spec count_params(Sconce.Policy.t() | map | list | tuple) :: non_neg_integer
  def count_params(params), do: Params.count(params)

  @doc """
  Estimates the bytes of a checkpoint by ExPhil's rule: f32 weights and moments, 10 kB, plus 10 %.

  #{Catalogue.docs(:checkpoint)}

      iex> Sconce.GPU.estimate_checkpoint_size(param_count: 1_000_000)
      13211000
  """
  @spec estimate_checkpoint_size(keyword) :: non_neg_integer
  def estimate_checkpoint_size(opts \\ []), do: Estimate.checkpoint(opts)

  @doc """
  Returns a warning if `estimate_checkpoint_size/1` reaches a size.

  #{Catalogue.docs(:checkpoint_warning)}

      iex> Sconce.GPU.check_checkpoint_size_warning(param_count: 1_000_000)
      :ok
      iex> Sconce.GPU.check_checkpoint_size_warning(param_count: 50_000_000)
      {:warning, "a checkpoint takes about 629 MB, which is slow to save and load: use smaller layers, or fewer"}
  """
  @spec check_checkpoint_size_warning(keyword) :: :ok | {:warning, String.t()}
  def check_checkpoint_size_warning(opts \\ []), do: Estimate.large_checkpoint(opts)

  @doc """
  Returns the load of a GPU in percent of the last sample period, which is between 1/6 second and 1 second: the time in
  which kernels ran (`gpu`), and in which memory was read or written (`memory`). A card with MIG instances does not
  report its load.

      iex> case Sconce.GPU.utilization() do
      ...>   {:ok, load} -> load.gpu in 0..100 and load.memory in 0..100
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
  """
  @spec utilization(index) :: {:ok, %{gpu: 0..100, memory: 0..100}} | {:error, Error.t()}
  def utilization(index \\ 0), do: Card.ask(:utilization, index, &Native.gpu_utilization/2)

  @doc """
  Returns the temperature of the GPU chip, in degrees Celsius.

      iex> case Sconce.GPU.temperature() do
      ...>   {:ok, celsius} -> celsius > 0
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
  """
  @spec temperature(index) :: {:ok, non_neg_integer} | {:error, Error.t()}
  def temperature(index \\ 0), do: Card.ask(:temperature, index, &Native.gpu_temperature/2)

  @doc """
  Returns the power draw of a card and its limit, in watts. The limit is nil if the card does not report it.

      iex> case Sconce.GPU.power() do
      ...>   {:ok, power} -> power.draw_watts > 0
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
  """
  @spec power(index) ::
          {:ok, %{draw_watts: float, limit_watts: float | nil}} | {:error, Error.t()}
  def power(index \\ 0), do: Card.ask(:power, index, &Native.gpu_power/2)

  @doc """
  Returns the current and the maximum clocks, in MHz: `graphics_mhz`, `sm_mhz`, `memory_mhz`, `max_graphics_mhz`,
  `max_sm_mhz`, `max_memory_mhz`. A clock that the card does not report is nil.

      iex> case Sconce.GPU.clocks() do
      ...>   {:ok, clocks} -> is_map_key(clocks, :max_sm_mhz)
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
  """
  @spec clocks(index) :: {:ok, %{atom => pos_integer | nil}} | {:error, Error.t()}
  def clocks(index \\ 0), do: Card.ask(:clocks, index, &Native.gpu_clocks/2)

  @doc """
  Returns why a GPU runs below its clocks; an empty list if nothing holds it back, or if it has no work.

  | reason | meaning |
  |---|---|
  | `:power_cap` | it draws as much power as it may |
  | `:heat` | it is too hot |
  | `:hardware` | it is too hot or draws too much, and the hardware has halved its clocks at least |
  | `:power_brake` | the power supply has asked for less |
  | `:sync_boost` | another GPU of its group runs slower |
  | `:setting` | someone has set its clocks |

      iex> case Sconce.GPU.throttling() do
      ...>   {:ok, reasons} -> is_list(reasons)
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
  """
  @spec throttling(index) :: {:ok, [atom]} | {:error, Error.t()}
  def throttling(index \\ 0), do: Card.throttling(index)

  @doc """
  Returns the processes that use a GPU, sorted by process id.

  `name` is nil if this VM may not see the process, for example in another container. `memory_mb` is nil if the
  driver does not report it. `types` are `:compute`, `:graphics` or both. `mig_instance` is the MIG instance, if the
  card has instances.

      iex> case Sconce.GPU.processes() do
      ...>   {:ok, processes} -> Enum.all?(processes, &is_integer(&1.pid))
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
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
  def processes(index \\ 0), do: Card.processes(index)

  @doc """
  Returns the versions of `driver`, `nvml` and `cuda`, and the file of NVML as `library`.

  `cuda` is the newest CUDA version that the driver supports, or nil if the CUDA library of the driver is missing.

      iex> case Sconce.GPU.versions() do
      ...>   {:ok, versions} -> is_binary(versions.driver)
      ...>   {:error, error} -> error.kind in [:unavailable, :not_found]
      ...> end
      true
  """
  @spec versions() :: {:ok, %{atom => String.t() | nil}} | {:error, Error.t()}
  def versions, do: Driver.ask(:versions, &Native.gpu_versions/2)

  @doc """
  Checks every step from the card to this build and explains the first failure. `IO.puts(Sconce.GPU.diagnose())`
  prints it, and `Sconce.GPU.Diagnosis` lists the checks.

      iex> diagnosis = Sconce.GPU.diagnose()
      iex> Enum.map(diagnosis.checks, & &1.name) |> Enum.take(3)
      ["card", "driver", "files"]
  """
  @spec diagnose() :: Diagnosis.t()
  def diagnose, do: Diagnosis.new()

  @doc """
  Prints the checks of `diagnose/0` and returns `:ok`, or an error of kind `:unavailable` with the number of `broken` checks in
  its details. Without a card that policies run on, the number is at least 1.

  #{Catalogue.docs(:diagnose)}

      iex> ExUnit.CaptureIO.capture_io(fn ->
      ...>   case Sconce.GPU.diagnose_cuda() do
      ...>     :ok -> true = Sconce.GPU.available?()
      ...>     {:error, error} -> true = error.details.broken > 0
      ...>   end
      ...> end) =~ "driver"
      true
  """
  @spec diagnose_cuda(keyword) :: :ok | {:error, Error.t()}
  def diagnose_cuda(opts \\ []) do
    [verbose: verbose?] = Options.validate!(opts, Catalogue.schema(:diagnose))
    Diagnosis.print(diagnose(), verbose?)
  end

  @doc """
  Formats a size in MiB.

      iex> {Sconce.GPU.format_mb(512), Sconce.GPU.format_mb(1536)}
      {"512 MB", "1.50 GB"}
  """
  @spec format_mb(non_neg_integer) :: String.t()
  def format_mb(mb), do: Memory.text(mb)
end
