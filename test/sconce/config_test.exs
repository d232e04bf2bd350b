defmodule Sconce.ConfigTest do
  # Not async: all tests share the environment.
  use ExUnit.Case, async: false

  import ExUnit.CaptureIO

  alias Mix.Tasks.Sconce.{Import, Train}
  alias Sconce.{Config, Corpus, Device, Error, Native, Policy, Trainer}
  alias Sconce.Test.Scratch
  alias Sconce.Trainer.Settings

  doctest Config

  setup do
    before = Application.get_all_env(:sconce)
    forget()

    on_exit(fn ->
      forget()
      Application.put_all_env(sconce: before)

      for {key, _value} <- Application.get_all_env(:exphil),
          do: Application.delete_env(:exphil, key)
    end)
  end

  defp forget do
    for {key, _value} <- Application.get_all_env(:sconce),
        do: Application.delete_env(:sconce, key)
  end

  defp environment(variables) do
    System.put_env(variables)
    on_exit(fn -> Enum.each(variables, fn {name, _text} -> System.delete_env(name) end) end)
  end

  # The value of a setting under these variables.
  defp under(variables, name) do
    System.put_env(variables)
    %{value: value, source: source} = Config.fetch(name)
    {value, source}
  after
    Enum.each(variables, fn {name, _text} -> System.delete_env(name) end)
  end

  test "without any source each setting has its default" do
    assert Config.settings() == [
             %{name: :device, value: :cpu, source: :default},
             %{name: :distribution, value: :data_parallel, source: :default},
             %{name: :precision, value: :f32, source: :default},
             %{name: :accumulation_dtype, value: :f32, source: :default},
             %{name: :memory_fraction, value: 1.0, source: :default},
             %{name: :memory_budget, value: nil, source: :default},
             %{name: :threads, value: nil, source: :default},
             %{name: :background, value: :nice, source: :default},
             %{name: :preset, value: nil, source: :default},
             %{name: :replays, value: nil, source: :default},
             %{name: :monitor, value: true, source: :default},
             %{name: :nvml, value: nil, source: :default},
             %{name: :monitor_dir, value: nil, source: :default},
             %{name: :trace, value: nil, source: :default},
             %{name: :tuner, value: true, source: :default},
             %{name: :tuner_dir, value: nil, source: :default}
           ]

    assert Config.ignored() == []
  end

  test "a variable overrides the application's environment, which overrides the default" do
    Application.put_env(:sconce, :threads, 3)
    assert Config.fetch(:threads) == %{name: :threads, value: 3, source: :application}
    assert under([{"SCONCE_THREADS", "2"}], :threads) == {2, "SCONCE_THREADS"}
    assert under([{"SCONCE_THREADS", ""}], :threads) == {3, :application}
    assert under([{"SCONCE_BACKGROUND", "idle"}], :background) == {:idle, "SCONCE_BACKGROUND"}
  end

  test "the variables of EXLA and ExPhil mean the same as there" do
    for {variables, device} <- [
          {%{"EXLA_TARGET" => "host"}, {:cpu, "EXLA_TARGET"}},
          {%{"EXLA_TARGET" => "cuda"}, {:cuda, "EXLA_TARGET"}},
          {%{"EXLA_TARGET" => "rocm"}, {:rocm, "EXLA_TARGET"}},
          {%{"XLA_TARGET" => "cuda12"}, {:cuda, "XLA_TARGET"}},
          {%{"XLA_TARGET" => "cpu", "EXLA_TARGET" => ""}, {:cpu, "XLA_TARGET"}},
          {%{"XLA_TARGET" => "cuda12", "EXLA_TARGET" => "host"}, {:cpu, "EXLA_TARGET"}},
          {%{"EXPHIL_GPU" => "1"}, {:cuda, "EXPHIL_GPU"}},
          {%{"EXPHIL_GPU" => "0", "EXLA_TARGET" => "cuda"}, {:cpu, "EXPHIL_GPU"}},
          {%{"CUDA_VISIBLE_DEVICES" => "0,1"}, {:cpu, :default}},
          {%{"CUDA_VISIBLE_DEVICES" => "", "EXLA_TARGET" => "cuda"},
           {:cpu, "CUDA_VISIBLE_DEVICES"}},
          {%{"CUDA_VISIBLE_DEVICES" => "-1", "EXPHIL_GPU" => "1"},
           {:cpu, "CUDA_VISIBLE_DEVICES"}},
          {%{"SCONCE_DEVICE" => "cuda:1"}, {{:cuda, 1}, "SCONCE_DEVICE"}},
          {%{"SCONCE_DEVICE" => "auto"}, {:auto, "SCONCE_DEVICE"}},
          {%{"SCONCE_DEVICE" => "cuda", "CUDA_VISIBLE_DEVICES" => "-1"}, {:cuda, "SCONCE_DEVICE"}}
        ],
        do: assert({variables, under(variables, :device)} == {variables, device})

    assert under([{"EXPHIL_DEFAULT_PRESET", "quick"}], :preset) ==
             {:quick, "EXPHIL_DEFAULT_PRESET"}

    assert under([{"EXPHIL_REPLAYS_DIR", "/games"}], :replays) == {"/games", "EXPHIL_REPLAYS_DIR"}

    fractions = [{"EXLA_MEMORY_FRACTION", "0.5"}, {"EXPHIL_GPU_MEMORY_FRACTION", "0.25"}]
    assert under(Enum.take(fractions, 1), :memory_fraction) == {0.5, "EXLA_MEMORY_FRACTION"}
    assert under(fractions, :memory_fraction) == {0.25, "EXPHIL_GPU_MEMORY_FRACTION"}

    assert under([{"SCONCE_MEMORY_BUDGET", "8GB"}], :memory_budget) ==
             {8_000_000_000, "SCONCE_MEMORY_BUDGET"}
  end

  test "a wrong value of a setting is refused, and the error names its source" do
    for {variables, message} <- [
          {%{"SCONCE_THREADS" => "many"},
           ~s(SCONCE_THREADS: threads cannot be "many", expected a positive integer)},
          {%{"SCONCE_THREADS" => "0"},
           ~s(SCONCE_THREADS: threads cannot be 0, expected a positive integer)},
          {%{"SCONCE_MEMORY_FRACTION" => "2"},
           ~s(SCONCE_MEMORY_FRACTION: memory_fraction cannot be 2.0, expected a number from 0.01 to 1)},
          {%{"SCONCE_MEMORY_BUDGET" => "much"},
           ~s(SCONCE_MEMORY_BUDGET: memory_budget cannot be "much", expected bytes, as in 8GB or nil)},
          {%{"EXPHIL_GPU" => "yes"}, ~s(EXPHIL_GPU: device cannot be "yes", expected 0 or 1)},
          {%{"SCONCE_DEVICE" => "cuda12"},
           ~s(SCONCE_DEVICE: device cannot be "cuda12", did you mean cuda?)},
          {%{"EXLA_TARGET" => "xyz"},
           ~s(EXLA_TARGET: device cannot be "xyz", expected one of host, cpu, cuda, rocm, tpu)},
          {%{"SCONCE_PRESET" => "quik"},
           ~s(SCONCE_PRESET: preset cannot be "quik", did you mean quick?)},
          {%{"SCONCE_BACKGROUND" => "nise"},
           ~s(SCONCE_BACKGROUND: background cannot be "nise", did you mean nice?)}
        ] do
      [_, name] = Regex.run(~r/: (\w+) cannot be/, message)
      assert_raise ArgumentError, message, fn -> under(variables, String.to_atom(name)) end
    end

    Application.put_env(:sconce, :threads, "2")
    assert_raise ArgumentError, ~r/^config :sconce: threads cannot be "2"/, &Config.settings/0
  end

  test "explain shows each wrong value and does not raise" do
    environment(%{"EXLA_TARGET" => "cudda", "EXPHIL_GPU" => "yes", "SCONCE_THREADS" => "many"})
    environment(%{"EXPHIL_DEFAULT_PRESET" => "qqqq"})
    Application.put_env(:sconce, :threads, -1)
    Application.put_env(:sconce, :preset, "gpu_standad")

    assert [:device, :device, :threads, :threads, :preset, :preset] =
             Enum.map(Config.wrong(), & &1.name)

    output = capture_io(fn -> assert Config.explain() == :ok end)
    assert output =~ ~r/^device +"yes" +EXPHIL_GPU \(wrong, see below\)$/m
    assert output =~ ~r/^replays +nil +default$/m

    for line <- [
          ~s(EXPHIL_GPU: device cannot be "yes", expected 0 or 1),
          ~s(EXLA_TARGET: device cannot be "cudda", did you mean cuda?),
          ~s(SCONCE_THREADS: threads cannot be "many", expected a positive integer),
          ~s(config :sconce: threads cannot be -1, expected a positive integer or nil),
          ~s(EXPHIL_DEFAULT_PRESET: preset cannot be "qqqq", expected one of #{presets()}),
          ~s(config :sconce: preset cannot be "gpu_standad", did you mean :gpu_standard?)
        ],
        do: assert(output =~ line <> "\n")
  end

  defp presets, do: Enum.join(Sconce.Preset.names(), ", ")

  test "a preset is named by an atom or its text" do
    for preset <- [:quick, "quick"] do
      Application.put_env(:sconce, :preset, preset)
      assert Config.get(:preset) == :quick
    end
  end

  test "a preset as in effect and one for a card are named by text too" do
    assert under([{"SCONCE_PRESET", "exphil:quick"}], :preset) ==
             {{:exphil, :quick}, "SCONCE_PRESET"}

    assert under([{"SCONCE_PRESET", "gpu:rtx_3090"}], :preset) ==
             {{:gpu, :rtx_3090}, "SCONCE_PRESET"}

    Application.put_env(:sconce, :preset, {:exphil, :full})
    assert Config.get(:preset) == {:exphil, :full}
  end

  test "a setting without effect is named, with the reason" do
    environment(%{"EXPHIL_MEMORY_LEDGER" => "1", "XLA_FLAGS" => "--fast"})
    environment(%{"SCONCE_THREAD" => "2", "SCONCE_QQQ" => "1", "SCONCE_CPU" => "avx3"})
    Application.put_env(:sconce, :training_dtype, :bf16)
    Application.put_env(:sconce, :thread, 2)

    assert [
             {"XLA_FLAGS", "--fast", "Sconce has no XLA" <> _},
             {"EXPHIL_MEMORY_LEDGER", "1", "Sconce.GPU.ledger/1 is always available"},
             {"SCONCE_QQQ", "1", "there is no such variable"},
             {"SCONCE_THREAD", "2", "did you mean SCONCE_THREADS?"},
             {"SCONCE_CPU", "avx3", "expected portable, avx2 or avx512" <> _},
             {"config :sconce, thread", "2", "did you mean :threads?"},
             {"config :sconce, training_dtype", ":bf16",
              "it is a key of config :exphil; config :sconce has precision"}
           ] = Config.ignored()
  end

  test "explain prints each value with its source" do
    environment(%{"XLA_TARGET" => "cuda12", "XLA_CACHE_PATH" => "/cache"})
    Application.put_env(:sconce, :threads, 2)
    output = capture_io(fn -> assert Config.explain() == :ok end)

    assert output =~ ~r/^device +:cuda +XLA_TARGET$/m
    assert output =~ ~r/^threads +2 +config :sconce$/m
    assert output =~ ~r/^preset +nil +default$/m
    assert output =~ ~r/^XLA_CACHE_PATH \/cache has no effect: Sconce has no XLA/m
  end

  describe "config :exphil" do
    defp exphil(settings), do: Application.put_all_env(exphil: settings)

    test "sets precision and devices, below config :sconce and variables" do
      exphil(
        training_dtype: :bf16,
        accumulation_dtype: :f32,
        devices: [:cuda0, :cuda1],
        distribution: :data_parallel
      )

      assert Config.fetch(:precision) == %{name: :precision, value: :bf16, source: :exphil}
      assert Config.fetch(:device) == %{name: :device, value: {:cuda, [0, 1]}, source: :exphil}
      assert %{value: :f32, source: :exphil} = Config.fetch(:accumulation_dtype)
      assert %{value: :data_parallel, source: :exphil} = Config.fetch(:distribution)

      output = capture_io(fn -> assert Config.explain() == :ok end)
      assert output =~ ~r/^device +{:cuda, \[0, 1\]} +config :exphil$/m
      assert output =~ ~r/^precision +:bf16 +config :exphil$/m
      assert output =~ ~r/^accumulation_dtype +:f32 +config :exphil$/m
      refute output =~ "no effect"

      Application.put_env(:sconce, :precision, :f16)
      assert Config.fetch(:precision) == %{name: :precision, value: :f16, source: :application}
      assert under([{"SCONCE_PRECISION", "f32"}], :precision) == {:f32, "SCONCE_PRECISION"}
      assert under([{"EXPHIL_GPU", "0"}], :device) == {:cpu, "EXPHIL_GPU"}
    end

    test "names devices and types as ExPhil and Nx do" do
      for {devices, device} <- [
            {[:cpu], :cpu},
            {[:cuda], :cuda},
            {[:cuda0], {:cuda, 0}},
            {["cuda:1"], {:cuda, 1}},
            {[{:cuda, 1}, 0], {:cuda, [1, 0]}},
            {nil, :cpu}
          ] do
        exphil(devices: devices)
        assert {devices, Config.get(:device)} == {devices, device}
      end

      exphil(training_dtype: {:bf, 16}, accumulation_dtype: {:f, 32})
      assert {Config.get(:precision), Config.get(:accumulation_dtype)} == {:bf16, :f32}
    end

    test "refuses each value that no run can follow, and names its key" do
      for {key, value, setting, message} <- [
            {:accumulation_dtype, :bf16, :accumulation_dtype,
             "accumulation_dtype cannot be :bf16, expected :f32: products are summed in f32"},
            {:training_dtype, :f64, :precision,
             "training_dtype cannot be :f64, expected one of :f32, :bf16, :f16"},
            {:distribution, :model_parallel, :distribution,
             "distribution cannot be :model_parallel, expected :data_parallel: several cards share each batch"},
            {:devices, [:cpu, :cuda0], :device,
             "devices cannot be [:cpu, :cuda0], expected [:cpu], or cards as [:cuda0, :cuda1]"},
            {:devices, [0, 0], :device,
             "devices cannot be [0, 0], expected [:cpu], or cards as [:cuda0, :cuda1]"},
            {:devices, :cuda0, :device,
             "devices cannot be :cuda0, expected [:cpu], or cards as [:cuda0, :cuda1]"}
          ] do
        exphil([{key, value}])
        message = "config :exphil: " <> message
        assert_raise ArgumentError, message, fn -> Config.get(setting) end
        assert capture_io(&Config.explain/0) =~ message <> "\n"
        Application.delete_env(:exphil, key)
      end

      exphil(accumulation_dtype: :bf16)
      run = [corpus: "nowhere", out: "run"]
      assert_raise ArgumentError, ~r/^config :exphil: accumul/, fn -> Settings.new!(run) end
    end

    test "gives runs their precision, which an option overrides, and a preset does not" do
      exphil(training_dtype: :bf16)
      run = [corpus: "nowhere", out: "run"]
      assert Settings.new!(run).options.precision == :bf16
      assert Settings.new!(run ++ [preset: :quick]).options.precision == :bf16
      assert Settings.new!(run ++ [precision: :f32]).options.precision == :f32
      assert Settings.new!(run ++ [preset: :quick, precision: :f32]).options.precision == :f32
      assert {_source, %{precision: :bf16}, _own} = Settings.measured!(nil, [], :plan)
      resumed = Settings.new!(out: "run", resume: true)
      refute Map.has_key?(resumed.options, :precision)
      Application.delete_env(:exphil, :training_dtype)
      assert Settings.new!(run).options.precision == :f32
    end

    test "gives a run all its cards, and a policy the first" do
      exphil(devices: [:cuda0, :cuda1], distribution: :data_parallel)

      assert Settings.new!(corpus: "nowhere", out: "run", preset: :gpu_quick).preset.options[
               :device
             ] == {:cuda, [0, 1]}

      for resolve <- [&Device.resolve/1, &Device.resolve_run/1] do
        case resolve.(nil) do
          {:ok, device} -> assert device.kind == :cuda
          {:error, error} -> assert Exception.message(error) =~ "device: config :exphil: "
        end
      end
    end
  end

  describe "a missing device" do
    @spec_options [embedding: {:vector, 1}, heads: [go: {:bernoulli, 1}], backbone: :mlp]

    test "is an error that names its source, never a silent fallback to the CPU" do
      environment(%{"EXLA_TARGET" => "cuda"})
      dir = Scratch.tmp_dir!("config")

      {:ok, %{reason: reason}} = Device.resolve(:auto)

      for refused <- [
            fn -> Policy.init(@spec_options) end,
            fn -> Policy.load(Path.join(dir, "policy")) end,
            fn -> train(dir, []) end,
            fn -> train(dir, preset: :quick) end,
            fn -> Trainer.evaluate(Path.join(dir, "policy"), dir) end
          ] do
        assert {:error, %Error{kind: :unavailable} = error} = refused.()
        assert Exception.message(error) =~ "device: EXLA_TARGET: #{reason}"
        assert Exception.message(error) =~ ~r/device: :cpu\)$/
      end

      assert {:ok, _policy} = Policy.init(@spec_options, device: :cpu)
      assert {:ok, _report} = train(dir, device: :cpu)
    end

    test "may come from an option as well" do
      assert {:error, %Error{kind: :unavailable, details: %{what: "option :device"}}} =
               Policy.init(@spec_options, device: :rocm)

      assert_raise ArgumentError,
                   ~r/option :device: expected one of :cpu, :cuda.*, got: :gpu, did you mean :cuda/,
                   fn ->
                     Policy.init(@spec_options, device: :gpu)
                   end
    end
  end

  defp train(dir, more) do
    corpus = corpus!(Path.join(dir, "corpus-#{System.unique_integer([:positive])}"))
    out = Path.join(dir, "run")
    small = [corpus: corpus, out: out, steps: 1, batch_size: 2, window_size: 4, stride: 4]
    {:ok, run} = Trainer.start_link(small ++ [hidden_sizes: [8], backbone: :mlp] ++ more)
    Trainer.await(run, 60_000)
  end

  defp corpus!(into) do
    games = for _game <- 1..4, do: {List.duplicate(0.5, 20), List.duplicate(1, 20)}
    {:ok, corpus} = Corpus.build({:vector, 1}, games, into: into, heads: [go: {:bernoulli, 1}])
    corpus
  end

  test "replays are imported from the setting's folder, unless a path is given" do
    dir = Scratch.tmp_dir!("config")
    into = ["--into", Path.join(dir, "corpus")]
    :ok = Native.corpus_fixtures(Path.join(dir, "replays"))
    assert_raise Mix.Error, ~r/^usage: mix sconce.import/, fn -> Import.run(into) end

    environment(%{"EXPHIL_REPLAYS_DIR" => Path.join(dir, "replays")})
    assert capture_io(fn -> Import.run(into) end) =~ ~r/^added 9 games/m
  end

  test "the preset of the setting is trained, unless the switch names another" do
    dir = Scratch.tmp_dir!("config")
    corpus!(Path.join(dir, "corpus"))
    paths = ["--corpus", Path.join(dir, "corpus"), "--out", Path.join(dir, "run")]
    environment(%{"EXPHIL_DEFAULT_PRESET" => "full"})

    assert_raise Mix.Error, ~r/^device: preset full: .*--device cpu/, fn ->
      Train.run(paths)
    end

    small = ~w(--preset none --backbone mlp --hidden-sizes 8 --steps 1 --window-size 4)
    assert capture_io(fn -> Train.run(paths ++ small) end) =~ "mlp 8 -> go(1)"
  end

  test "the number of a run's threads comes from the option, else from the setting" do
    run = [corpus: "nowhere", out: "run"]
    Application.put_env(:sconce, :threads, 3)
    assert Settings.new!(run).options.threads == 3
    assert Settings.new!(run ++ [threads: 1]).options.threads == 1
    assert {nil, nil, nil, %{threads: 3}} = Settings.evaluate!([])
  end
end
