defmodule Sconce.DeviceTest do
  # Not async: all tests share the environment.
  use ExUnit.Case, async: false

  import Sconce.Test.Scratch

  alias Sconce.{Corpus, Device, Error, HRR, Policy, Serving, Session, Trainer}
  alias Sconce.Evolve.{Population, Search}
  alias Sconce.Trainer.Report

  doctest Device

  @spec_options [embedding: {:vector, 2}, backbone: :mlp, heads: [go: {:bernoulli, 1}]]

  describe "the CPU" do
    test "is the default, and is not shown by sessions and servings" do
      assert {:ok, device} = Device.resolve(nil)
      assert device == %Device{kind: :cpu, index: nil, auto: false, reason: nil}
      {:ok, policy} = Policy.init(@spec_options)
      {:ok, session} = Session.open(policy)
      {:ok, serving} = Serving.start_link(policy: policy)
      {:ok, serving} = Serving.info(serving)
      assert inspect(policy) =~ ~r/ · cpu>$/
      refute inspect(session) =~ "cpu"
      refute inspect(serving) =~ "cpu"
    end

    @tag card: false
    test "is the choice of :auto without a card, and is shown as such" do
      assert {:ok, %Device{kind: :cpu, auto: true, reason: reason} = device} =
               Device.resolve(:auto)

      assert inspect(device) == "#Sconce.Device<cpu (auto): #{reason}>"

      {:ok, policy} = Policy.init(@spec_options, device: :auto)
      assert inspect(policy) =~ ~r/ · cpu \(auto\)>$/
      assert {:ok, %{device: "cpu (auto)"}} = Policy.info(policy)

      {:ok, session} = Session.open(policy)
      assert inspect(session) =~ ~r/ · cpu \(auto\)>$/
      {:ok, plain} = Session.open(policy, device: :cpu)
      refute inspect(plain) =~ "cpu"

      {:ok, serving} = Serving.start_link(policy: policy)
      {:ok, serving} = Serving.info(serving)
      assert inspect(serving) =~ ~r/ · cpu \(auto\)>$/
    end
  end

  @tag card: false
  test "the reports of a run and of an evaluation name the device that :auto chose" do
    dir = tmp_dir!("device")
    games = for _game <- 1..4, do: {List.duplicate(0.5, 20), List.duplicate(1, 20)}
    corpus = Path.join(dir, "corpus")
    {:ok, _} = Corpus.build({:vector, 1}, games, into: corpus, heads: [go: {:bernoulli, 1}])

    small = [
      steps: 1,
      batch_size: 2,
      window_size: 4,
      stride: 4,
      backbone: :mlp,
      hidden_sizes: [8],
      lr_schedule: :constant
    ]

    run = [corpus: corpus, out: Path.join(dir, "run")]

    {:ok, trainer} = Trainer.start_link(run ++ small ++ [device: :auto])
    {:ok, report} = Trainer.await(trainer, 60_000)
    assert report.options.device == "cpu (auto)"
    assert Report.format(report) =~ "\ncomputed on cpu (auto)"

    # A run may be resumed on another device.
    {:ok, trainer} = Trainer.start_link(out: run[:out], resume: true, steps: 2, device: :cpu)
    {:ok, report} = Trainer.await(trainer, 60_000)
    assert report.options.device == "cpu"
    refute Report.format(report) =~ "computed on"

    last = Path.join(run[:out], "last.safetensors")
    {:ok, report} = Trainer.evaluate(last, corpus, device: :auto)
    assert report.device == "cpu (auto)"
    assert Report.format(report) =~ "\ncomputed on cpu (auto)"
  end

  describe "a card that cannot be used" do
    @tag card: false
    test "is an error wherever a device is an option, and never falls back to the CPU" do
      {:ok, policy} = Policy.init(@spec_options)
      {:ok, atoms} = HRR.atoms(2, 16)
      small = Population.spec(:cart_pole, hidden_sizes: [2])
      Process.flag(:trap_exit, true)

      for choice <- [:cuda, {:cuda, 0}, {:cuda, 7}],
          refused <- [
            fn -> Device.resolve(choice) end,
            fn -> Policy.init(@spec_options, device: choice) end,
            fn -> Policy.load("nowhere", device: choice) end,
            fn -> Session.open(policy, device: choice) end,
            fn -> Serving.start_link(policy: policy, device: choice) end,
            fn -> Trainer.plan(Policy.Spec.new(@spec_options), device: choice) end,
            fn -> Trainer.evaluate("nowhere", "nowhere", device: choice) end,
            fn -> Population.new(small, count: 2, device: choice) end,
            fn -> Search.new(small, :cart_pole, source: :snes, device: choice) end,
            fn -> HRR.on(atoms, choice) end
          ] do
        assert {:error, %Error{kind: :unavailable, op: :device, details: details}} = refused.()
        assert %{what: "option :device", cause: _, reason: _} = details
        assert details.mend =~ ~r/device: :cpu$/
      end
    end

    test "is an error among several cards of a run as well; each number may appear once" do
      assert {:error, %Error{kind: :unavailable}} = Device.resolve({:cuda, [0, 7]})
      dir = tmp_dir!("cards")
      run = [corpus: "nowhere", out: Path.join(dir, "run"), spec: Policy.Spec.new(@spec_options)]

      for cards <- [[0, 7], [7]] do
        {:ok, trainer} = Trainer.start_link(run ++ [device: {:cuda, cards}])
        assert {:error, %Error{kind: :unavailable, op: :device}} = Trainer.await(trainer)
      end

      for cards <- [[], [0, 0], [1, 0, 1]],
          do: assert_raise(ArgumentError, ~r/each/, fn -> Device.resolve({:cuda, cards}) end)

      assert_raise ArgumentError, ~r/option :device: expected/, fn ->
        Trainer.start_link(run ++ [device: {:cuda, [0, -1]}])
      end

      # Calls that use a single device.
      {:ok, policy} = Policy.init(@spec_options)

      for one <- [
            fn -> Policy.init(@spec_options, device: {:cuda, [0, 1]}) end,
            fn -> Session.open(policy, device: {:cuda, [0, 1]}) end,
            fn -> Trainer.plan(run[:spec], device: {:cuda, [0, 1]}) end,
            fn -> Trainer.evaluate("nowhere", "nowhere", device: {:cuda, [0, 1]}) end
          ],
          do: assert_raise(ArgumentError, ~r/option :device: expected/, one)

      assert to_string(%Device{kind: :cuda, index: [0, 3]}) == "cuda:0,3"
    end

    @tag cuda: false
    test "of a build without CUDA has the cause :build" do
      assert told(%{}) ==
               "build: device: option :device: this build has no CUDA " <>
                 "(to mend it: bin/cuda-toolkit, then compile with SCONCE_CUDA=1, or device: :cpu)"
    end
  end

  # Another library path imitates another machine.
  describe "a build with CUDA" do
    @describetag :cuda

    test "loads without the libraries of CUDA" do
      library = Application.app_dir(:sconce, "priv/native/sconce_nif.so")
      {needed, 0} = System.cmd("readelf", ["--dynamic", "--wide", library])
      assert needed =~ "(NEEDED)"
      refute needed =~ ~r/NEEDED.*lib(cu|nv)/
    end

    test "contains no kernels of quantized models" do
      library = Application.app_dir(:sconce, "priv/native/sconce_nif.so")
      {sections, 0} = System.cmd("readelf", ["--section-headers", "--wide", library])
      assert sections =~ ".text"
      refute sections =~ ".nv_fatbin"
    end

    @tag driver: false
    test "names the missing driver, or the missing library if there is only a driver" do
      assert told(%{}) ==
               "driver: device: option :device: NVIDIA's driver (libcuda.so.1) was not found " <>
                 "(to mend it: install NVIDIA's driver 580 or newer, or device: :cpu)"

      assert told(%{"LD_LIBRARY_PATH" => fake!("driver", libcuda: 1)}) =~
               ~r/^library: .*libcublas.so.13 was not found .*LD_LIBRARY_PATH/
    end

    @tag timeout: 300_000
    test "names missing NCCL for several cards, and a missing card" do
      machine = fake!("machine", libcuda: 1, libcublas: 13, libcublasLt: 13, libcurand: 10)
      environment = %{"LD_LIBRARY_PATH" => machine, "FAKE_COUNT" => "2"}

      assert told(environment, {:cuda, [0, 1]}) =~
               ~r/^library: .*libnccl.so.2 was not found .*install NCCL 2 for CUDA 13.*LD_LIBRARY_PATH/

      assert told(environment, {:cuda, [1, 2]}) =~ ~r/^card: .*there is no card 2 among 2/
    end

    @tag timeout: 300_000
    test "names a driver or card that is too old and a missing card, and accepts a complete machine" do
      driver = fake!("driver", libcuda: 1)
      machine = fake!("machine", libcuda: 1, libcublas: 13, libcublasLt: 13, libcurand: 10)

      for {folder, variables, sentence} <- [
            {driver, %{FAKE_VERSION: 12_040},
             "driver_version: .*supports CUDA 12.4, and 13.0 is needed"},
            {driver, %{FAKE_COUNT: 0},
             "card: .*there is no card 0 among 0 .*CUDA_VISIBLE_DEVICES"},
            {driver, %{FAKE_INIT: 100}, "card: .*there is no card 0 among 0"},
            {driver, %{FAKE_MAJOR: 7},
             "capability: .*Imagined has compute capability 7.0, and 8.0"},
            {driver, %{FAKE_INIT: 999}, "refused: .*NVIDIA's driver reports CUDA_ERROR_UNKNOWN"},
            {machine, %{}, "cuda:0$"}
          ] do
        variables = Map.new(variables, fn {name, value} -> {"#{name}", "#{value}"} end)
        assert told(Map.put(variables, "LD_LIBRARY_PATH", folder)) =~ ~r/^#{sentence}/
      end
    end
  end

  # The device that another VM resolves in this environment, or its error.
  defp told(environment, choice \\ :cuda) do
    script = """
    case Sconce.Device.resolve(#{inspect(choice)}) do
      {:ok, device} -> IO.puts(to_string(device))
      {:error, error} -> IO.puts([error.details.cause, ": ", Exception.message(error)])
    end
    """

    ebin = Application.app_dir(:sconce, "ebin")
    environment = Enum.to_list(environment)
    {output, 0} = System.cmd("elixir", ["-pa", ebin, "-e", script], env: environment)
    String.trim(output)
  end

  defp fake!(name, libraries) do
    folder = Path.join(tmp_dir!("fake_cuda"), name)
    File.mkdir_p!(folder)

    for {library, version} <- libraries do
      part = if library == :libcuda, do: "DRIVER", else: "LIBRARIES"
      into = Path.join(folder, "#{library}.so.#{version}")
      source = Path.expand("../support/fake_cuda.c", __DIR__)
      {_, 0} = System.cmd("cc", ["-shared", "-fPIC", "-D#{part}", "-o", into, source])
    end

    folder
  end

  test ":gpu suggests :cuda, although :cpu is spelled more like it" do
    assert_raise ArgumentError, ~r/got: :gpu, did you mean :cuda\?/, fn ->
      Sconce.Policy.load("nowhere.safetensors", device: :gpu)
    end
  end
end
