defmodule Sconce.GPU.Diagnosis do
  alias Sconce.{Config, Error, GPU, Native}

  @moduledoc """
  The result of `Sconce.GPU.diagnose/0`: checks of every step from the card to this build. `IO.puts/1` prints it:

  ```text
  card    NVIDIA cards: 1
  driver  580.159.03
  files   nvidia-uvm is missing; CUDA needs it (to mend it: sudo nvidia-modprobe -u -c=0)
  nvml    13.580.159.03, libnvidia-ml.so.1
  cuda    13.0
  gpu 0   NVIDIA H200, 140.40 GB, compute 9.0
  build   this build has no CUDA
  ```

  | check | question |
  |---|---|
  | `card` | Is an NVIDIA card on the PCI bus? |
  | `driver` | Is the kernel module loaded, and in which version? |
  | `files` | Do the device files in `/dev` exist, and may this user read and write them? |
  | `nvml` | Does the driver's library open and answer? |
  | `cuda` | Does the driver's CUDA library exist, and are no cards hidden (`CUDA_VISIBLE_DEVICES`)? |
  | `gpu N` | Does GPU `N` answer? The check is called `gpus` if there is none. |
  | `build` | Does this build of Sconce support NVIDIA cards? |
  | `device` | If this build supports cards, do policies run on the first one that CUDA shows? |
  | `cache` | If they do, can the driver keep the kernels that it compiles (`CUDA_CACHE_PATH`)? |

  A check is `:ok`, `:broken`, or `:unknown` if this system does not show the answer. Only the first broken check has a
  remedy (`mend`), because later checks may fail for the same reason. A machine without a card has no remedy.
  """

  @enforce_keys [:available, :checks]
  defstruct @enforce_keys

  @typedoc "A check: its result as text in `found`, and a remedy in `mend`."
  @type check :: %{
          name: String.t(),
          state: :ok | :broken | :unknown,
          found: String.t(),
          mend: String.t() | nil
        }

  @typedoc "A diagnosis. `available` is the result of `Sconce.GPU.available?/0`."
  @type t :: %__MODULE__{available: boolean, checks: [check]}

  @devices "sudo nvidia-modprobe -u -c=0"
  @start "start the container with its GPUs, as docker run --gpus all does"
  @capable "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"

  @doc false
  # The diagnosis of the machine whose file system is at `root`.
  def new(root \\ "/") do
    nvml = versions()
    here = %{root: root, windows: there?(root, "dev/dxg"), answers: match?({:ok, _}, nvml)}

    checks =
      [card(here), driver(here), files(here), nvml(here, nvml), cuda(here, nvml)] ++
        gpus(here) ++ build(Native.device_check([0]))

    %__MODULE__{available: GPU.available?(), checks: first_mend(checks)}
  end

  @doc false
  # One line for each check, as `{name, text}`.
  def rows(%__MODULE__{checks: checks}) do
    for %{name: name, found: found, mend: mend} <- checks,
        do: {name, if(mend, do: "#{found} (to mend it: #{mend})", else: found)}
  end

  @doc false
  # Prints the checks, or only those that are not passed.
  @spec print(t, boolean) :: :ok | {:error, Error.t()}
  def print(%__MODULE__{available: available?, checks: checks} = diagnosis, all?) do
    broken = Enum.reject(checks, &(&1.state == :ok))
    shown = if all?, do: checks, else: broken
    if shown != [], do: IO.puts(to_string(%{diagnosis | checks: shown}))
    if available?, do: :ok, else: {:error, undiagnosed(broken)}
  end

  defp undiagnosed(broken) do
    count = max(Enum.count(broken, &(&1.state == :broken)), 1)
    details = %{what: "a usable card", reason: "broken checks: #{count}", broken: count}
    %Error{kind: :unavailable, op: :diagnose_cuda, details: details}
  end

  # An invalid setting of NVML is reported as a check, not raised.
  defp versions do
    GPU.versions()
  rescue
    wrong in ArgumentError ->
      details = %{what: "NVML", reason: Exception.message(wrong)}
      {:error, %Error{kind: :unavailable, op: :versions, details: details}}
  end

  # The PCI vendor id of NVIDIA, and the PCI class of displays and 3D controllers.
  @nvidia "0x10de"
  @display "0x03"

  defp card(%{windows: true}), do: ok("card", "provided by Windows")

  defp card(here) do
    vendors = Path.wildcard(Path.join(here.root, "sys/bus/pci/devices/*/vendor"))

    case Enum.count(vendors, &nvidia?/1) do
      0 when vendors == [] or here.answers ->
        unknown("card", "this system does not show its PCI bus")

      0 ->
        broken("card", "no NVIDIA card on the PCI bus", nil)

      n ->
        ok("card", "NVIDIA cards: #{n}")
    end
  end

  defp nvidia?(vendor) do
    class = Path.join(Path.dirname(vendor), "class")
    read(vendor) =~ @nvidia and String.starts_with?(read(class), @display)
  end

  defp driver(%{windows: true}), do: ok("driver", "provided by Windows")

  defp driver(here) do
    version = Path.join(here.root, "proc/driver/nvidia/version")

    case Regex.run(~r/^NVRM version:.*?\s(\d+\.[\d.]+)/m, read(version)) do
      [_, version] ->
        ok("driver", version)

      nil when here.answers ->
        unknown("driver", "this system does not show its kernel modules")

      nil ->
        no_driver(here.root)
    end
  end

  defp no_driver(root) do
    cond do
      there?(root, "sys/module/nouveau") ->
        broken("driver", "the nouveau driver uses the card", "install NVIDIA's driver")

      container?(root) ->
        broken("driver", "not loaded, or hidden from this container", @start)

      true ->
        broken("driver", "not loaded", "sudo modprobe nvidia, once it is installed")
    end
  end

  defp files(%{windows: true}), do: ok("files", "dxg")

  defp files(here) do
    dev = Path.join(here.root, "dev")
    cards = Path.wildcard(Path.join(dev, "nvidia[0-9]*"))
    needed = cards ++ for name <- ["nvidiactl", "nvidia-uvm"], do: Path.join(dev, name)
    {there, missing} = Enum.split_with(needed, &File.exists?/1)
    refused = Enum.reject(there, &match?({:ok, %{access: :read_write}}, File.stat(&1)))

    cond do
      there == [] and here.answers ->
        unknown("files", "this system does not show its device files")

      there == [] ->
        broken("files", "none in #{dev}", no_files(here.root))

      refused != [] ->
        broken("files", "no permission for #{names(refused)}", permit(refused))

      missing == [] ->
        ok("files", names(there))

      true ->
        broken("files", "#{names(missing)} is missing; CUDA needs it", @devices)
    end
  end

  defp names(paths), do: Enum.map_join(paths, " ", &Path.basename/1)
  defp permit(paths), do: "sudo chmod a+rw #{Enum.join(paths, " ")}, or join their group"

  defp no_files(root), do: if(container?(root), do: @start, else: @devices)

  # Paths that exist in containers of Docker, Podman and Kubernetes.
  @containers [".dockerenv", "run/.containerenv", "var/run/secrets/kubernetes.io"]

  defp container?(root), do: Enum.any?(@containers, &there?(root, &1))

  defp nvml(_here, {:ok, versions}), do: ok("nvml", "#{versions.nvml}, #{versions.library}")

  defp nvml(_here, {:error, %Error{details: %{what: "native library"}}}),
    do: unknown("nvml", "unknown without the native library")

  defp nvml(here, {:error, %Error{details: %{cause: :no_library} = details}}),
    do: broken("nvml", details.reason, no_library(here.root))

  defp nvml(_here, {:error, error}), do: refused("nvml", error)

  defp no_library(root) do
    cond do
      Config.get(:nvml) -> "name the library or its folder in SCONCE_NVML"
      container?(root) -> @capable
      true -> "install the driver's libraries, or name their folder in SCONCE_NVML"
    end
  end

  defp cuda(here, {:ok, versions}) do
    case {System.get_env("CUDA_VISIBLE_DEVICES"), versions.cuda} do
      {_visible, nil} ->
        broken("cuda", "libcuda.so.1 is missing", no_cuda(here.root))

      {nil, version} ->
        ok("cuda", version)

      {hidden, _} when hidden in ["", "-1"] ->
        broken("cuda", "CUDA_VISIBLE_DEVICES hides all cards", unhide())

      {visible, version} ->
        ok("cuda", "#{version}, with CUDA_VISIBLE_DEVICES=#{visible}")
    end
  end

  defp cuda(_here, {:error, _error}), do: unknown("cuda", "unknown without nvml")

  defp unhide, do: "unset CUDA_VISIBLE_DEVICES"

  defp no_cuda(root) do
    if container?(root),
      do: @capable,
      else: "install the driver's library for CUDA (package libcuda1)"
  end

  defp gpus(%{answers: false}), do: []

  defp gpus(here) do
    case GPU.list_devices() do
      {:ok, []} -> [broken("gpus", "the driver reports no GPU", none(here.root))]
      {:ok, devices} -> Enum.map(devices, &gpu/1)
      {:error, error} -> [refused("gpus", error)]
    end
  end

  defp none(root), do: if(container?(root), do: @start)

  defp gpu(%{index: index, error: nil} = device) do
    capability = with {major, minor} <- device.compute_capability, do: "compute #{major}.#{minor}"
    mig = if device.mig, do: "split into MIG instances, which CUDA uses instead"
    facts = [device.name, GPU.format_mb(device.memory_mb), capability, mig]
    ok("gpu #{index}", facts |> Enum.reject(&is_nil/1) |> Enum.join(", "))
  end

  defp gpu(%{index: index, error: error}), do: refused("gpu #{index}", error)

  defp build({:error, %Error{details: %{cause: "build"}} = error}), do: [refused("build", error)]

  defp build({:error, %Error{details: %{what: "native library"}}}),
    do: [unknown("build", "unknown without the native library")]

  defp build(:ok), do: [for_cards(), ok("device", "policies run on cuda:0"), cache()]
  defp build({:error, error}), do: [for_cards(), refused("device", error)]

  defp for_cards, do: ok("build", "for NVIDIA cards")

  @again "the driver compiles kernels again in each VM"

  @doc false
  # The check of the driver's cache of compiled kernels, with these values of CUDA_CACHE_DISABLE and CUDA_CACHE_PATH, in
  # this home.
  def cache(
        disabled \\ System.get_env("CUDA_CACHE_DISABLE"),
        path \\ System.get_env("CUDA_CACHE_PATH"),
        home \\ System.user_home()
      ) do
    path = path || Path.join(home || "/", ".nv/ComputeCache")

    cond do
      disabled == "1" ->
        broken("cache", "CUDA_CACHE_DISABLE=1: #{@again}", "unset CUDA_CACHE_DISABLE")

      writable?(path) ->
        ok("cache", path)

      true ->
        mend = "CUDA_CACHE_PATH=FOLDER, with a folder that this user may write"
        broken("cache", "#{path} cannot be written: #{@again}", mend)
    end
  end

  # The driver makes folders that are missing.
  defp writable?(path) do
    case File.stat(path) do
      {:ok, stat} -> stat.type == :directory and stat.access == :read_write
      {:error, :enoent} when path not in ["/", "."] -> writable?(Path.dirname(path))
      {:error, _reason} -> false
    end
  end

  defp refused(name, %Error{details: %{reason: reason} = details}),
    do: broken(name, reason, details[:mend])

  defp refused(name, error), do: broken(name, Exception.message(error), nil)

  defp ok(name, found), do: %{name: name, state: :ok, found: found, mend: nil}
  defp unknown(name, found), do: %{name: name, state: :unknown, found: found, mend: nil}
  defp broken(name, found, mend), do: %{name: name, state: :broken, found: found, mend: mend}

  defp first_mend(checks) do
    {fine, rest} = Enum.split_while(checks, &(&1.state != :broken))
    fine ++ Enum.take(rest, 1) ++ for(check <- Enum.drop(rest, 1), do: %{check | mend: nil})
  end

  defp there?(root, path), do: File.exists?(Path.join(root, path))

  defp read(path) do
    case File.read(path) do
      {:ok, text} -> text
      {:error, _reason} -> ""
    end
  end

  defimpl Inspect do
    def inspect(%{checks: checks}, _opts) do
      case Enum.find(checks, &(&1.state == :broken)) do
        nil ->
          "#Sconce.GPU.Diagnosis<nothing is broken>"

        %{name: name, found: found} ->
          Sconce.Text.printable("#Sconce.GPU.Diagnosis<#{name}: #{found}>")
      end
    end
  end

  defimpl String.Chars do
    def to_string(diagnosis) do
      rows = Sconce.GPU.Diagnosis.rows(diagnosis)
      width = rows |> Enum.map(fn {name, _text} -> String.length(name) end) |> Enum.max()

      Enum.map_join(rows, "\n", fn {name, text} ->
        Sconce.Text.lines("#{String.pad_trailing(name, width)}  #{text}")
      end)
    end
  end
end
