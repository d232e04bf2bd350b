defmodule Sconce.GPUTest do
  # Not async: all tests share the setting of the driver's library.
  use ExUnit.Case, async: false

  import ExUnit.CaptureIO
  import Sconce.Test.Nvml
  import Sconce.Test.Scratch, only: [run: 4]

  alias Sconce.{Error, GPU, Native}
  alias Sconce.GPU.Driver

  doctest GPU

  # Queries of one card; `of_all/0` adds the queries that name no card.
  defp per_card do
    [
      device_info: &GPU.device_info/1,
      device_name: &GPU.device_name/1,
      memory_status: &GPU.memory_status/1,
      get_memory_info: &GPU.get_memory_info/1,
      check_memory_warning: &GPU.check_memory_warning([], &1),
      check_free_memory: &GPU.check_free_memory([], &1),
      utilization: &GPU.utilization/1,
      temperature: &GPU.temperature/1,
      power: &GPU.power/1,
      clocks: &GPU.clocks/1,
      throttling: &GPU.throttling/1,
      processes: &GPU.processes/1
    ]
  end

  defp of_all do
    of_first = for {op, question} <- per_card(), do: {op, fn -> question.(0) end}

    [
      device_count: &GPU.device_count/0,
      list_devices: &GPU.list_devices/0,
      versions: &GPU.versions/0
    ] ++ of_first
  end

  describe "with two cards" do
    test "memory has the map keys that apps read" do
      fake!()

      assert GPU.memory_status() == {:ok, %{used_mb: 4521, total_mb: 24_564, utilization: 0.18}}
      assert GPU.memory_status(1) == {:ok, %{used_mb: 0, total_mb: 143_771, utilization: 0.0}}

      assert GPU.get_memory_info() ==
               {:ok,
                %{
                  used_mb: 4521,
                  free_mb: 20_000,
                  total_mb: 24_564,
                  reserved_mb: 43,
                  utilization: 45
                }}

      assert {:ok, %{utilization: nil, used_mb: 0}} = GPU.get_memory_info(1)
    end

    test "a line names used and total memory and the load of the card" do
      fake!()
      assert GPU.memory_status_string() == "GPU: 4.4/24.0 GB (18%) | Util: 45%"
      assert GPU.memory_status_string(1) == "GPU: 0.0/140.4 GB (0%)"
    end

    test "devices are listed with their properties" do
      fake!()
      assert GPU.device_count() == {:ok, 2}
      assert GPU.device_name() == {:ok, "NVIDIA GeForce RTX 4090"}
      assert GPU.device_name(1) == {:ok, "NVIDIA H200"}

      assert {:ok, [first, second]} = GPU.list_devices()

      assert first == %{
               index: 0,
               name: "NVIDIA GeForce RTX 4090",
               memory_mb: 24_564,
               uuid: "GPU-00000000-0000-0000-0000-000000000000",
               pci_bus_id: "00000000:01:00.0",
               compute_capability: {8, 9},
               mig: false,
               error: nil
             }

      assert {:ok, ^second} = GPU.device_info(1)
      assert %{index: 1, compute_capability: {9, 0}, mig: true, error: nil} = second
    end

    test "utilization, temperature, power and clocks have their units" do
      fake!()
      assert GPU.utilization() == {:ok, %{gpu: 45, memory: 20}}
      assert GPU.temperature() == {:ok, 61}
      assert GPU.power() == {:ok, %{draw_watts: 231.5, limit_watts: 450.0}}

      assert GPU.clocks(1) ==
               {:ok,
                %{
                  graphics_mhz: 345,
                  sm_mhz: 345,
                  memory_mhz: 3201,
                  max_graphics_mhz: 1980,
                  max_sm_mhz: 1980,
                  max_memory_mhz: 3201
                }}
    end

    test "reasons for low clocks are named, and an idle card has none" do
      folder = fake!(throttle: 1)
      assert GPU.throttling() == {:ok, []}
      set!(folder, throttle: 4 + 8 + 32)
      assert GPU.throttling() == {:ok, [:power_cap, :heat, :hardware]}
    end

    test "each process is listed once, with all its kinds of work" do
      fake!()

      assert {:ok, [drawing, elsewhere, both]} = GPU.processes()
      assert %{pid: 9, memory_mb: 3, types: [:graphics]} = drawing

      assert elsewhere ==
               %{pid: 77, name: nil, memory_mb: nil, types: [:compute], mig_instance: nil}

      assert %{pid: 4242, name: "/usr/bin/beam.smp", types: [:compute, :graphics]} = both
      assert {:ok, [%{mig_instance: 3}]} = GPU.processes(1)
    end

    test "versions name the library in use" do
      folder = fake!()
      library = Path.join(folder, "libnvidia-ml.so.1")

      assert GPU.versions() ==
               {:ok,
                %{driver: "580.159.03", nvml: "13.580.159.03", cuda: "13.0", library: library}}

      Application.put_env(:sconce, :nvml, library)
      assert {:ok, %{library: ^library}} = GPU.versions()
    end

    test "warnings begin when memory reaches the threshold, or less is free than needed" do
      fake!()
      assert GPU.check_memory_warning() == :ok
      assert {:warning, text} = GPU.check_memory_warning(threshold: 0.18)
      assert text =~ "GPU 0 is nearly full, 4.4/24.0 GB (18%)"
      assert GPU.check_memory_warning([threshold: 0.01], 1) == :ok

      assert GPU.check_free_memory() == :ok
      assert GPU.check_free_memory(required_mb: 20_000) == :ok
      assert {:warning, text} = GPU.check_free_memory(required_mb: 20_001)
      assert text =~ "19.53 GB free on GPU 0, 19.53 GB needed"
      assert GPU.check_free_memory([required_mb: 20_001], 1) == :ok
    end

    test "a missing card is named, with the number of cards" do
      fake!()

      for {op, question} <- per_card() do
        assert {:error, %Error{kind: :not_found, op: ^op} = error} = question.(2)
        assert Exception.message(error) == "#{op}: GPU 2 (of 2, counted from 0) not found"
      end

      assert GPU.memory_status_string(2) == "GPU: N/A"
    end

    test "a query is given up at its deadline, and its late answer is dropped" do
      folder = fake!(sleep_ms: 300)
      ask = &Native.gpu_temperature(&1, {&2, 0})

      assert {:error, %Error{kind: :deadline, op: :temperature} = error} =
               Driver.ask(:temperature, ask, 20)

      assert Exception.message(error) =~ "the answer missed its deadline of 20 ms"

      set!(folder, [])
      assert GPU.temperature() == {:ok, 61}
      refute_received {:sconce, _ref, _answer}, "an answer after the deadline"
    end
  end

  test "a driver may have no card" do
    fake!(count: 0)
    assert GPU.device_count() == {:ok, 0}
    assert GPU.list_devices() == {:ok, []}
    assert {:error, %Error{kind: :not_found} = error} = GPU.memory_status()
    assert Exception.message(error) =~ "GPU 0 (of 0, counted from 0) not found"
  end

  describe "with a card that is lost" do
    test "each query of it is an error, and the other card still answers" do
      fake!(card1: 15)

      for {op, question} <- per_card() do
        assert {:error, %Error{kind: :unavailable, op: ^op} = error} = question.(1)
        assert %{what: "GPU 1", cause: :lost, mend: "restart the machine"} = error.details
        refute match?({:error, _}, question.(0))
      end
    end

    test "it is listed with its error" do
      fake!(card1: 15)
      assert {:ok, [%{error: nil}, lost]} = GPU.list_devices()

      assert %{index: 1, name: nil, memory_mb: nil, error: %Error{op: :list_devices} = error} =
               lost

      assert Exception.message(error) =~ ~r/GPU 1: .*fell off the bus.*to mend it: restart/
    end
  end

  describe "without a driver that answers" do
    test "each query is an error that names the missing part" do
      none!()

      for {op, question} <- of_all() do
        assert {:error, %Error{kind: :unavailable, op: ^op} = error} = question.()
        assert %{what: "NVML", cause: :no_library, mend: "mix sconce.doctor"} = error.details
        assert error.details.reason =~ "libnvidia-ml.so.1"
      end

      assert GPU.memory_status_string() == "GPU: N/A"
    end

    test "each cause has its name" do
      for {settings, cause} <- [
            {[init: 9], :no_driver},
            {[init: 18], :version_mismatch},
            {[init: 4], :no_permission},
            {[init: 999], :other}
          ] do
        fake!(settings)
        assert {:error, %Error{kind: :unavailable} = error} = GPU.device_count()
        assert error.details.cause == cause
        {_meaning, mend} = Driver.causes()[cause]
        assert error.details[:mend] == mend
      end

      for {code, cause} <- [{16, :reset_required}, {3, :not_supported}] do
        fake!(card0: code)
        assert {:error, %Error{details: %{cause: ^cause}}} = GPU.temperature()
      end
    end

    test "a file that is no library is refused by its name" do
      none!()
      Application.put_env(:sconce, :nvml, __ENV__.file)
      assert {:error, error} = GPU.device_count()
      assert error.details.cause == :no_library
      assert error.details.reason =~ Path.basename(__ENV__.file)
    end

    test "a driver that is installed later is found" do
      folder = Path.join(fake!(), "later")
      File.mkdir_p!(folder)
      Application.put_env(:sconce, :nvml, folder)
      assert {:error, %Error{details: %{cause: :no_library}}} = GPU.device_count()

      library = Path.join(folder, "libnvidia-ml.so.1")
      File.cp!(Path.join(Path.dirname(folder), "libnvidia-ml.so.1"), library)
      assert GPU.device_count() == {:ok, 2}
    end
  end

  test "a build for CPUs computes on no GPU, with any driver" do
    fake!()
    {:ok, info} = Sconce.native_info()
    assert info[:cuda] || not GPU.available?()
  end

  test "a variable may set the library's path" do
    folder = fake!()
    Application.delete_env(:sconce, :nvml)
    System.put_env("SCONCE_NVML", folder)
    on_exit(fn -> System.delete_env("SCONCE_NVML") end)
    assert GPU.device_count() == {:ok, 2}
  end

  test "the system's loader finds it without a setting" do
    folder = fake!()
    ebin = Application.app_dir(:sconce, "ebin")
    args = ["-pa", ebin, "-e", "IO.inspect(Sconce.GPU.device_name())"]
    env = [{"LD_LIBRARY_PATH", folder}]
    assert {~s({:ok, "NVIDIA GeForce RTX 4090"}\n), 0} = run("elixir", args, folder, env)
  end

  test "many processes ask at the same time" do
    fake!()
    tasks = for index <- 1..50, do: Task.async(fn -> GPU.temperature(rem(index, 2)) end)
    answers = Task.await_many(tasks)
    assert Enum.frequencies(answers) == %{{:ok, 61} => 25, {:ok, 30} => 25}
  end

  test "the estimate grows with weights, windows, frames and bytes, by ExPhil's rule" do
    # (4 * 1e6 + 64 * 1e4) * 2 bytes, plus a fifth.
    assert GPU.estimate_memory_mb() == 11
    assert GPU.estimate_memory_mb(param_count: 100_000_000) == 917
    assert GPU.estimate_memory_mb(param_count: 100_000_000, precision: :f32) == 1834
    assert GPU.estimate_memory_mb(param_count: 0, batch_size: 1024) == 23
    assert GPU.estimate_memory_mb(param_count: 0, batch_size: 1024, temporal: true) == 1406

    assert_raise ArgumentError, ~r/did you mean :param_count/, fn ->
      GPU.estimate_memory_mb(params_count: 1)
    end
  end

  test "a printed line of memory agrees with the queried numbers" do
    fake!()

    for index <- 0..1 do
      {:ok, memory} = GPU.memory_status(index)
      shown = ~r"^GPU: ([\d.]+)/([\d.]+) GB \((\d+)%\)"
      [_, used, total, percent] = Regex.run(shown, GPU.memory_status_string(index))
      assert_in_delta 1024 * String.to_float(used), memory.used_mb, 51.3
      assert_in_delta 1024 * String.to_float(total), memory.total_mb, 51.3
      assert_in_delta String.to_integer(percent) / 100, memory.utilization, 0.01
    end
  end

  test "a printed size agrees with the size, to its last digit" do
    :rand.seed(:exsss, {1, 2, 3})

    for _ <- 1..1000 do
      mb = :rand.uniform(4 ** :rand.uniform(11)) - 1

      case String.split(GPU.format_mb(mb)) do
        [number, "MB"] ->
          assert String.to_integer(number) == mb

        [number, "GB"] ->
          assert_in_delta String.to_float(number) * 1024, mb, 0.005 * 1024 + 1.0e-6
      end
    end
  end

  describe "the tags that ExUnit excludes" do
    setup do
      on_exit(fn -> System.delete_env("EXPHIL_GPU") end)
    end

    test "follow from the card, unless EXPHIL_GPU forces them" do
      assert GPU.exunit_exclude() == if(GPU.available?(), do: [], else: [:gpu])

      for {forced, excluded} <- [{"1", []}, {"0", [:gpu]}] do
        System.put_env("EXPHIL_GPU", forced)
        assert GPU.exunit_exclude() == excluded
      end

      System.put_env("EXPHIL_GPU", "yes")
      wrong = ~s(EXPHIL_GPU: device cannot be "yes", expected 0 or 1)
      assert_raise ArgumentError, wrong, &GPU.exunit_exclude/0
    end
  end

  test "the driver's cards count as available, whether or not this build computes on them" do
    fake!()
    assert GPU.gpu_available?()
    Application.put_env(:sconce, :nvml, "/nowhere/libnvidia-ml.so.1")
    refute GPU.gpu_available?()
  end

  test "weights are counted in policies and in nested tensors" do
    {:ok, policy} =
      Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}], backbone: :mlp)

    assert GPU.count_params(policy) == policy.num_weights
    nx = fn shape -> %{__struct__: Nx.Tensor, shape: shape, data: nil, type: {:f, 32}} end
    tree = %{"dense" => %{"kernel" => nx.({512, 256}), "bias" => [nx.({256}), {nx.({})}]}}
    assert GPU.count_params(tree) == 512 * 256 + 256 + 1
    assert GPU.count_params(%{__struct__: Axon.ModelState, data: tree}) == 131_329
    assert_raise ArgumentError, ~r/^params: /, fn -> GPU.count_params(%{a: :b}) end
  end

  test "a checkpoint has weights and moments, and a large one a warning" do
    size = &GPU.estimate_checkpoint_size/1
    assert size.(param_count: 0) == 11_000
    assert size.(param_count: 1000, include_optimizer: false) == round(1.1 * 14_000)
    assert GPU.check_checkpoint_size_warning(param_count: 1000) == :ok

    assert {:warning, text} = GPU.check_checkpoint_size_warning(threshold_mb: 12)
    assert text =~ "about 13 MB"
  end

  test "the diagnosis prints all checks, or only the broken ones, and counts these" do
    Application.put_env(:sconce, :nvml, "/nowhere/libnvidia-ml.so.1")
    on_exit(fn -> Application.delete_env(:sconce, :nvml) end)
    %{available: available?, checks: checks} = GPU.diagnose()
    broken = Enum.count(checks, &(&1.state == :broken))
    expected = if available?, do: :ok, else: max(broken, 1)

    counted = fn
      {:error, %Sconce.Error{kind: :unavailable} = error} -> error.details.broken
      :ok -> :ok
    end

    text = capture_io(fn -> assert counted.(GPU.diagnose_cuda()) == expected end)
    for %{name: name} <- checks, do: assert(text =~ ~r/^#{name} /m)
    text = capture_io(fn -> assert counted.(GPU.diagnose_cuda(verbose: false)) == expected end)
    for %{name: name, state: :ok} <- checks, do: refute(text =~ ~r/^#{name} /m)
  end

  test "an index that is not the number of a card raises" do
    for wrong <- [-1, 1.0, "0", nil, :cuda] do
      assert_raise ArgumentError, fn -> GPU.memory_status(wrong) end
    end
  end

  describe "on a real GPU" do
    @describetag :nvml
    # An emulated card has no driver to query.
    if GPU.gpu_available?(), do: @describetag(:gpu)

    test "each query of each card has a plausible answer" do
      assert {:ok, count} = GPU.device_count()
      assert count > 0
      assert {:ok, devices} = GPU.list_devices()
      assert Enum.map(devices, & &1.index) == Enum.to_list(0..(count - 1))
      assert {:ok, %{driver: driver}} = GPU.versions()
      assert driver =~ ~r/^\d+\.\d+/

      for %{index: index, memory_mb: total, error: nil, mig: mig} <- devices do
        assert {:ok, %{used_mb: used, free_mb: free, total_mb: ^total, reserved_mb: reserved}} =
                 GPU.get_memory_info(index)

        assert_in_delta used + free + reserved, total, 3
        assert {:ok, %{utilization: share}} = GPU.memory_status(index)
        assert share >= 0.0 and share <= 1.0
        assert {:ok, celsius} = GPU.temperature(index)
        assert celsius in 1..120
        assert {:ok, %{draw_watts: watts}} = GPU.power(index)
        assert watts > 0.0
        assert {:ok, %{sm_mhz: now, max_sm_mhz: most}} = GPU.clocks(index)
        assert now in 1..most
        assert {:ok, processes} = GPU.processes(index)
        assert is_list(processes)
        assert mig or match?({:ok, %{gpu: _percent}}, GPU.utilization(index))
      end
    end

    test "the diagnosis finds nothing broken" do
      for %{name: name, state: state, found: found} <- GPU.diagnose().checks,
          name not in ["build", "device"] do
        assert {name, state, found} == {name, if(state == :broken, do: :ok, else: state), found}
      end
    end
  end
end
