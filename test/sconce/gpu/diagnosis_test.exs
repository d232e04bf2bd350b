defmodule Sconce.GPU.DiagnosisTest do
  # Not async: all tests share the setting of the driver's library.
  use ExUnit.Case, async: false

  import Sconce.Test.Nvml
  import Sconce.Test.Scratch, only: [tmp_dir!: 1]

  alias Sconce.GPU
  alias Sconce.GPU.Diagnosis

  # Creates a machine's files from a map such as `%{"proc/driver/nvidia/version" => text}`.
  defp machine(files) do
    root = tmp_dir!("machine")

    for {path, text} <- files do
      path = Path.join(root, path)
      File.mkdir_p!(Path.dirname(path))
      File.write!(path, text)
    end

    root
  end

  @bridge %{
    "sys/bus/pci/devices/0000:00:01.0/vendor" => "0x8086\n",
    "sys/bus/pci/devices/0000:00:01.0/class" => "0x060400\n"
  }
  # The card and its audio function.
  @card %{
    "sys/bus/pci/devices/0000:01:00.0/vendor" => "0x10de\n",
    "sys/bus/pci/devices/0000:01:00.0/class" => "0x030000\n",
    "sys/bus/pci/devices/0000:01:00.1/vendor" => "0x10de\n",
    "sys/bus/pci/devices/0000:01:00.1/class" => "0x040300\n"
  }
  @module %{
    "proc/driver/nvidia/version" =>
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\n" <>
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
  }
  @files %{"dev/nvidia0" => "", "dev/nvidiactl" => "", "dev/nvidia-uvm" => ""}
  @whole @bridge |> Map.merge(@card) |> Map.merge(@module) |> Map.merge(@files)

  defp diagnose(files), do: files |> machine() |> Diagnosis.new()

  defp check(diagnosis, name), do: Enum.find(diagnosis.checks, &(&1.name == name))

  defp mends(diagnosis),
    do: for(%{name: name, mend: mend} when mend != nil <- diagnosis.checks, do: {name, mend})

  test "on a working machine each check shows its finding" do
    fake!()
    diagnosis = diagnose(@whole)

    {machine, build} = Enum.split(diagnosis.checks, 7)
    assert Enum.map(machine, & &1.name) == ~w(card driver files nvml cuda) ++ ["gpu 0", "gpu 1"]
    assert Enum.all?(machine, &(&1.state == :ok))

    assert check(diagnosis, "card").found == "NVIDIA cards: 1"
    assert check(diagnosis, "driver").found == "580.159.03"
    assert check(diagnosis, "files").found == "nvidia0 nvidiactl nvidia-uvm"
    assert check(diagnosis, "gpu 0").found == "NVIDIA GeForce RTX 4090, 23.99 GB, compute 8.9"
    assert check(diagnosis, "gpu 1").found =~ "compute 9.0, split into MIG instances"
    assert diagnosis.available == Enum.all?(build, &(&1.state == :ok))

    case build do
      [%{name: "build", found: found, mend: mend}] ->
        assert found == "this build has no CUDA"
        assert mend == "bin/cuda-toolkit, then compile with SCONCE_CUDA=1"

      [%{name: "build", found: "for NVIDIA cards"}, %{name: "device", found: found} | cache] ->
        assert found == "policies run on cuda:0" or found =~ "was not found"
        assert cache == [] == (found =~ "was not found")
    end
  end

  test "a machine without a card needs no remedy" do
    none!()
    diagnosis = diagnose(@bridge)
    assert check(diagnosis, "card").found == "no NVIDIA card on the PCI bus"
    assert check(diagnosis, "nvml").state == :broken
    assert check(diagnosis, "cuda").state == :unknown
    assert mends(diagnosis) == []
  end

  test "only the first broken check names a remedy" do
    none!()
    carded = Map.merge(@bridge, @card)
    assert [{"driver", "sudo modprobe nvidia" <> _}] = mends(diagnose(carded))

    nouveau = Map.put(carded, "sys/module/nouveau/refcnt", "1\n")
    assert mends(diagnose(nouveau)) == [{"driver", "install NVIDIA's driver"}]

    loaded = Map.merge(carded, @module)
    assert mends(diagnose(loaded)) == [{"files", "sudo nvidia-modprobe -u -c=0"}]

    contained = Map.put(loaded, ".dockerenv", "")
    assert [{"files", "start the container with its GPUs" <> _}] = mends(diagnose(contained))

    bare = %{"run/.containerenv" => ""}
    assert [{"driver", "start the container with its GPUs" <> _}] = mends(diagnose(bare))

    unnamed = Map.merge(loaded, @files)
    assert [{"nvml", "name the library or its folder in SCONCE_NVML"}] = mends(diagnose(unnamed))
  end

  test "a missing file for CUDA is found, even if the driver answers" do
    fake!()
    diagnosis = diagnose(Map.delete(@whole, "dev/nvidia-uvm"))
    assert check(diagnosis, "files").found == "nvidia-uvm is missing; CUDA needs it"
    assert mends(diagnosis) == [{"files", "sudo nvidia-modprobe -u -c=0"}]
  end

  test "files without permission for this user are named" do
    fake!()
    root = machine(@whole)
    path = Path.join(root, "dev/nvidia0")
    File.chmod!(path, 0o444)

    # Root may write all files.
    case File.stat!(path).access do
      :read_write -> assert check(Diagnosis.new(root), "files").state == :ok
      :read -> assert check(Diagnosis.new(root), "files").found == "no permission for nvidia0"
    end
  end

  test "a refusing driver is explained" do
    fake!(init: 18)
    diagnosis = diagnose(@whole)
    assert check(diagnosis, "nvml").found =~ "version mismatch"
    assert [{"nvml", "restart the machine" <> _}] = mends(diagnosis)
    assert inspect(diagnosis) =~ ~r/^#Sconce.GPU.Diagnosis<nvml: .*version mismatch>$/
  end

  test "a driver without its library for CUDA is explained" do
    fake!(cuda: 12)
    assert [{"cuda", "install the driver's library for CUDA" <> _}] = mends(diagnose(@whole))
    contained = Map.put(@whole, "run/.containerenv", "")
    assert [{"cuda", "start the container with NVIDIA_DRIVER_" <> _}] = mends(diagnose(contained))
  end

  test "cards hidden by a variable are named" do
    fake!()
    on_exit(fn -> System.delete_env("CUDA_VISIBLE_DEVICES") end)
    System.put_env("CUDA_VISIBLE_DEVICES", "-1")
    assert mends(diagnose(@whole)) == [{"cuda", "unset CUDA_VISIBLE_DEVICES"}]
    System.put_env("CUDA_VISIBLE_DEVICES", "1")
    assert check(diagnose(@whole), "cuda").found == "13.0, with CUDA_VISIBLE_DEVICES=1"
  end

  test "a lost card is explained, and the other card shown" do
    fake!(card1: 15)
    diagnosis = diagnose(@whole)
    assert check(diagnosis, "gpu 0").state == :ok
    assert check(diagnosis, "gpu 1").found =~ "fell off the bus"
    assert mends(diagnosis) == [{"gpu 1", "restart the machine"}]
  end

  test "a driver without a card is explained" do
    fake!(count: 0)
    diagnosis = diagnose(@whole)
    assert %{state: :broken, found: "the driver reports no GPU"} = check(diagnosis, "gpus")
    assert mends(diagnosis) == []
    contained = Map.put(@whole, "var/run/secrets/kubernetes.io/token", "")
    assert [{"gpus", "start the container with its GPUs" <> _}] = mends(diagnose(contained))
  end

  test "no check is broken if the driver answers and the system shows nothing" do
    fake!()
    diagnosis = diagnose(%{})

    for name <- ["card", "driver", "files"],
        do: assert({name, check(diagnosis, name).state} == {name, :unknown})

    assert check(diagnosis, "nvml").state == :ok
  end

  test "cards of Windows are recognised" do
    fake!()
    diagnosis = diagnose(%{"dev/dxg" => ""})
    for name <- ["card", "driver", "files"], do: assert(check(diagnosis, name).state == :ok)
  end

  test "a wrong setting is explained" do
    none!()
    Application.put_env(:sconce, :nvml, 5)
    assert check(diagnose(@whole), "nvml").found =~ "nvml cannot be 5"
  end

  test "a diagnosis prints one line per check" do
    fake!(card1: 15)
    lines = @whole |> diagnose() |> to_string() |> String.split("\n")

    assert "driver  580.159.03" in lines

    assert "gpu 1   device fell off the bus or has otherwise become inacessible" <> mend =
             Enum.at(lines, 6)

    assert mend == " (to mend it: restart the machine)"
    assert List.last(lines) =~ ~r/^(build |device|cache )  \S+/
  end

  test "this machine is diagnosed, with or without a card" do
    none!()
    names = for check <- GPU.diagnose().checks, do: check.name
    assert Enum.take(names, 6) == ["card", "driver", "files", "nvml", "cuda", "build"]
    assert Enum.drop(names, 6) in [[], ["device"], ["device", "cache"]]
  end

  test "a driver that cannot keep the kernels that it compiles is named, with the remedy" do
    home = tmp_dir!("home")
    own = Path.join(home, ".nv/ComputeCache")
    assert %{name: "cache", state: :ok, found: ^own, mend: nil} = Diagnosis.cache(nil, nil, home)
    assert %{state: :ok, found: ^home} = Diagnosis.cache("0", home, "/nowhere")

    off = Diagnosis.cache("1", nil, home)
    assert off.found == "CUDA_CACHE_DISABLE=1: the driver compiles kernels again in each VM"
    assert off.mend == "unset CUDA_CACHE_DISABLE"

    # A folder in a file.
    File.write!(Path.join(home, ".nv"), "")
    refused = Diagnosis.cache(nil, nil, home)
    assert refused.state == :broken
    assert refused.found =~ "#{own} cannot be written"
    assert refused.mend =~ "CUDA_CACHE_PATH"
  end
end
