defmodule Sconce.PresetTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureLog
  import Sconce.Test.Scratch

  alias Sconce.{Corpus, Error, Native, Preset, Trainer}
  alias Sconce.Env.CartPole
  alias Sconce.Policy.Spec
  alias Sconce.Trainer.Settings

  doctest Preset

  # The table of ExPhil's presets, row by row: epochs, files, batch, hidden_sizes; backbone, window, layers; rate and
  # schedule; other options. `A` is augmentation with the app's probabilities.
  @default [learning_rate: 1.0e-4, lr_schedule: :constant, warmup_steps: 1]
  @augmented [mirror: 0.5, noise: 0.3, noise_scale: 0.01]
  @mlp [backbone: :mlp, window_size: 1, stride: 1]
  @temporal [hidden_size: 256, stride: 5]

  mamba = fn window, layers -> [backbone: :mamba, window_size: window, num_layers: layers] end
  restarts = [lr_schedule: :cosine_restarts, restart_period: 5000, restart_mult: 2]

  thorough =
    [learning_rate: 1.0e-4, label_smoothing: 0.1, val_split: 0.15] ++
      restarts ++
      [patience: 10, min_delta: 0.001, ema_decay: 0.9995, accumulation_steps: 4] ++
      [state_size: 32, expand_factor: 2] ++ @augmented

  production =
    [epochs: 100, batch_size: 256, warmup_steps: 2000] ++ mamba.(60, 3) ++ thorough ++ @temporal

  character = fn name, window ->
    production |> Keyword.merge(window_size: window, characters: [name], device: :cuda)
  end

  @table [
    quick:
      {[epochs: 1, batch_size: 32, hidden_sizes: [32, 32]] ++ @default ++ @mlp, max_files: 5},
    standard:
      {[epochs: 10, batch_size: 64, hidden_sizes: [64, 64], learning_rate: 3.0e-4] ++
         [lr_schedule: :cosine, warmup_steps: 1, mirror: 0.5, noise: 0.2, noise_scale: 0.01] ++
         [label_smoothing: 0.05, val_split: 0.1, patience: 5, min_delta: 0.01] ++ @mlp,
       max_files: 50, precompute: true},
    full_cpu:
      {[epochs: 30, batch_size: 64, hidden_sizes: [128, 128], learning_rate: 1.0e-4] ++
         [lr_schedule: :cosine, warmup_steps: 500, label_smoothing: 0.1, val_split: 0.1] ++
         [patience: 7, min_delta: 0.005, ema_decay: 0.999] ++ @augmented ++ @mlp,
       max_files: 200, keep_best: 3, precompute: true},
    gpu_quick:
      {[epochs: 3, batch_size: 256, val_split: 0.1, device: :cuda] ++
         mamba.(30, 1) ++ @default ++ @augmented ++ @temporal,
       max_files: 20, hidden_sizes: [64, 64]},
    gpu_mlp_quick:
      {[epochs: 5, batch_size: 256, hidden_sizes: [128, 128], learning_rate: 3.0e-4] ++
         [lr_schedule: :cosine, warmup_steps: 100, val_split: 0.1, device: :cuda] ++
         @augmented ++ @mlp, max_files: 50, precompute: true},
    gpu_lstm_quick:
      {[epochs: 3, batch_size: 256, backbone: :lstm, window_size: 30, num_layers: 1] ++
         [val_split: 0.1, device: :cuda] ++ @default ++ @augmented ++ @temporal,
       max_files: 30, hidden_sizes: [64, 64]},
    gpu_gru_quick:
      {[epochs: 3, batch_size: 256, backbone: :gru, window_size: 30, num_layers: 1] ++
         [val_split: 0.1, device: :cuda] ++ @default ++ @augmented ++ @temporal,
       max_files: 30, hidden_sizes: [64, 64]},
    gpu_attention_quick:
      {[epochs: 3, batch_size: 256, backbone: :sliding_window, window_size: 30] ++
         [num_layers: 1, num_heads: 4, head_dim: 64, val_split: 0.1, device: :cuda] ++
         @default ++ @augmented ++ @temporal, max_files: 30, hidden_sizes: [64, 64]},
    gpu_standard:
      {[epochs: 20, batch_size: 256, learning_rate: 1.0e-4, lr_schedule: :cosine] ++
         [warmup_steps: 500, label_smoothing: 0.1, val_split: 0.1, patience: 5] ++
         [min_delta: 0.01, ema_decay: 0.999, device: :cuda] ++
         mamba.(60, 2) ++ @augmented ++ @temporal,
       max_files: 100, hidden_sizes: [128, 128], keep_best: 5},
    full:
      {[epochs: 50, batch_size: 256, learning_rate: 1.0e-4, lr_schedule: :cosine] ++
         [warmup_steps: 1000, label_smoothing: 0.1, val_split: 0.1, patience: 7] ++
         [min_delta: 0.005, ema_decay: 0.999, accumulation_steps: 2, device: :cuda] ++
         mamba.(60, 2) ++ @augmented ++ @temporal, hidden_sizes: [256, 256], keep_best: 5},
    production: {production ++ [device: :cuda], hidden_sizes: [256, 256], keep_best: 10},
    rtx4090_quick:
      {[epochs: 3, batch_size: 512, val_split: 0.1, device: :cuda] ++
         mamba.(30, 1) ++ @default ++ @augmented ++ @temporal,
       max_files: 30, hidden_sizes: [128, 128]},
    rtx4090_standard:
      {[epochs: 20, batch_size: 512, learning_rate: 1.0e-4, lr_schedule: :cosine] ++
         [warmup_steps: 500, label_smoothing: 0.1, val_split: 0.1, patience: 5] ++
         [min_delta: 0.01, ema_decay: 0.999, state_size: 16, device: :cuda] ++
         mamba.(60, 2) ++ @augmented ++ @temporal,
       max_files: 200, hidden_sizes: [256, 256], keep_best: 5},
    rtx4090_full:
      {[epochs: 50, batch_size: 512, warmup_steps: 1000, device: :cuda] ++
         mamba.(60, 3) ++ thorough ++ @temporal, hidden_sizes: [256, 256], keep_best: 10},
    mewtwo: {character.("Mewtwo", 90), hidden_sizes: [256, 256], keep_best: 10},
    link: {character.("Link", 75), hidden_sizes: [256, 256], keep_best: 10},
    ganondorf: {character.("Ganondorf", 60), hidden_sizes: [256, 256], keep_best: 10},
    zelda: {character.("Zelda", 60), hidden_sizes: [256, 256], keep_best: 10},
    gameandwatch: {character.("Mr. Game & Watch", 45), hidden_sizes: [256, 256], keep_best: 10}
  ]

  # Defaults of the app's command line, which a preset may override.
  @everywhere [optimizer: :adam, dropout: 0.0, neutral_weight: 0.25, max_grad_norm: 1.0] ++
                [accumulation_steps: 1, val_split: 0.1, precision: :f32]
  @loss [button_weight: 2.0, label_smoothing: 0.1, focal_gamma: 3.0, stick_edge_weight: 2.0] ++
          [entropy_weight: 0.01]

  test "the presets are those of ExPhil, with the same values" do
    assert Enum.sort(Preset.names()) == @table |> Keyword.keys() |> Enum.sort()

    for {name, {values, ignored}} <- @table do
      preset = Preset.get(name)
      {loss, options} = Keyword.pop!(preset.options, :loss)
      {smoothing, values} = Keyword.split(values, [:label_smoothing])
      {kept, ignored} = Keyword.split(ignored, [:keep_best])
      values = values ++ kept
      told = for {option, value, why} <- preset.ignored, why =~ " ", do: {option, value}

      assert {name, sorted(options)} == {name, sorted(Keyword.merge(@everywhere, values))}
      assert {name, sorted(loss)} == {name, sorted(Keyword.merge(@loss, smoothing))}
      assert {name, sorted(told)} == {name, sorted(ignored)}
      assert preset.memory > 100_000_000
    end
  end

  defp sorted(options), do: options |> Keyword.new() |> Enum.sort()

  describe "presets as in effect" do
    @effect [
      embedding: {:melee, layout: :packed, previous_action: false},
      dual_port: false,
      loss_on: :last,
      sampling: :buttons,
      action_oversample: 3.0
    ]

    test "have the values with which ExPhil's command line trains" do
      for {name, {values, _ignored}} <- @table do
        %{options: options, ignored: ignored} = Preset.get({:exphil, name})
        {loss, options} = Keyword.pop!(options, :loss)
        {smoothing, values} = Keyword.split(values, [:label_smoothing])
        {ema, values} = Keyword.pop(values, :ema_decay)
        {kept, _ignored} = Keyword.split(elem(@table[name], 1), [:keep_best])

        schedule =
          cond do
            # The preset sets no schedule, and Mamba's default is one with restarts.
            name in [:gpu_quick, :rtx4090_quick] ->
              [lr_schedule: :cosine_restarts, restart_period: 1000, restart_mult: 2]

            values[:lr_schedule] == :cosine ->
              [decay_steps: 10_000]

            true ->
              []
          end

        expected =
          Enum.reduce([values, kept, @effect, schedule], @everywhere, &Keyword.merge(&2, &1))

        assert {name, sorted(options)} == {name, sorted(expected)}
        expected = [focal_heads: :bernoulli] ++ Keyword.merge(@loss, smoothing)
        assert {name, sorted(loss)} == {name, sorted(expected)}

        assert List.keymember?(ignored, :ema_decay, 0) == (ema != nil)
        dropout? = name in [:gpu_lstm_quick, :gpu_gru_quick, :gpu_attention_quick]
        assert match?({_, 0.1, _}, List.keyfind(ignored, :dropout, 0)) == dropout?
      end
    end

    test "are one table beside the catalogue's" do
      table = Preset.Text.differences()

      for row <- [
            "| option | preset | as in effect | presets |",
            "| `loss_on` | `:all` | `:last` | all |",
            "| `sampling` | `:shuffled` | `:buttons` | all |",
            "| `dual_port` | `true` | `false` | all |",
            "| `embedding` | `:melee` | `{:melee, [layout: :packed, previous_action: false]}` | all |",
            "| `focal_heads` | `:all` | `:bernoulli` | all |",
            "| `lr_schedule` | `:constant` | `:cosine_restarts` | `:gpu_quick`, `:rtx4090_quick` |"
          ],
          do: assert(String.contains?(table, row <> "\n"), row)

      assert File.read!("guides/exphil.livemd") =~ String.trim(table)
      assert table =~ ~r/\| `decay_steps` \| `nil` \| `10000` \| `:standard`, /
      assert table =~ ~r/\| `ema_decay` \| `0.999` \| `nil` \| `:full_cpu`, /
    end

    test "give way to options that exclude theirs" do
      walked = Preset.merge(Preset.get("exphil:full"), unroll: :carry, lr_schedule: :constant)
      for gone <- [:loss_on, :sampling, :decay_steps], do: refute(walked.options[gone])
      spec = Spec.new(backbone: :gru)
      refute Preset.merge(Preset.get({:exphil, :full}), spec: spec).options[:embedding]
      assert {:melee, options} = Spec.new(preset: {:exphil, :gpu_quick}).embedding
      assert options[:layout] == :packed
    end

    test "run on replays, with their names in the log" do
      dir = tmp_dir!("preset")
      :ok = Native.corpus_fixtures(Path.join(dir, "replays"))
      {:ok, corpus} = Corpus.import(Path.join(dir, "replays"), into: Path.join(dir, "corpus"))
      small = [batch_size: 2, window_size: 3, stride: 200, steps: 1, hidden_size: 8]
      more = [head_hidden_size: 8, validation_stride: 500, evaluate: false, device: :cpu]
      run = [corpus: corpus, out: Path.join(dir, "run"), preset: {:exphil, :gpu_gru_quick}]

      log =
        capture_log(fn ->
          assert {:ok, report} = train(run ++ small ++ more)
          assert %{loss_on: "last", dual_port: false, sampling: "buttons"} = report.options
        end)

      assert log =~ "preset exphil:gpu_gru_quick, no effect: dropout 0.1"
    end
  end

  test "presets for cards have the batch and the window that are recommended for them" do
    for {card, batch, window} <- [
          {:rtx_3090, 256, 60},
          {:rtx_4090, 256, 90},
          {:rtx_5090, 512, 120},
          {:a100_40gb, 512, 120},
          {:a100_80gb, 1024, 180}
        ] do
      preset = Preset.get({:gpu, card})
      own = Keyword.take(preset.options, [:batch_size, :window_size])
      assert Enum.sort(own) == [batch_size: batch, window_size: window]
      own = Keyword.drop(preset.options, [:batch_size, :window_size])
      usual = Keyword.drop(Preset.get(:gpu_standard).options, [:batch_size, :window_size])
      assert sorted(own) == sorted(usual)
      assert preset.memory >= Preset.get(:gpu_standard).memory
      assert Preset.get("gpu:#{card}") == preset
      assert Preset.Text.cards() =~ "| `#{inspect(card)}` | "
    end

    assert_raise ArgumentError, ~r/unknown preset :rtx_309, did you mean :rtx_3090\?/, fn ->
      Preset.get({:gpu, :rtx_309})
    end

    assert_raise ArgumentError,
                 ~r/unknown family of presets :exfil, did you mean :exphil\?/,
                 fn ->
                   Preset.get({:exfil, :gpu_quick})
                 end

    assert_raise ArgumentError, ~r/unknown preset :gpu_quik, did you mean :gpu_quick\?/, fn ->
      Preset.get({:exphil, :gpu_quik})
    end
  end

  @tag :capture_log
  test "ExPhil's names of backbones map to the same backbones" do
    for {name, own} <- [
          attention: [backbone: :sliding_window, head_dim: 64],
          decision_transformer: [backbone: :causal_transformer],
          lstm: [backbone: :lstm]
        ] do
      {options, _ignored} = Preset.Catalogue.translate(backbone: name)
      assert Keyword.take(options, [:backbone, :head_dim]) == own
    end
  end

  test "each preset makes a Spec of its size, and runs on replays" do
    dir = tmp_dir!("preset")
    :ok = Native.corpus_fixtures(Path.join(dir, "replays"))
    {:ok, corpus} = Corpus.import(Path.join(dir, "replays"), into: Path.join(dir, "corpus"))

    for %{name: name, options: options} <- Preset.list() do
      %Spec{backbone: {backbone, model}} = Spec.new(preset: name)
      assert backbone == options[:backbone]
      given = Keyword.take(options, Keyword.keys(model))
      assert Keyword.take(model, Keyword.keys(given)) |> sorted() == sorted(given)

      # As small as possible: the test tries the preset's rates, factors and schedule.
      small = [batch_size: 2, window_size: 2, stride: 200, accumulation_steps: 1, steps: 1]
      run = [corpus: corpus, out: Path.join(dir, "#{name}"), preset: name, device: :cpu]
      model = if backbone == :mlp, do: [], else: [hidden_size: 8, head_hidden_size: 8]
      more = [characters: nil, validation_stride: 500, evaluate: false]
      assert {:ok, report} = train(run ++ small ++ model ++ more)
      assert {name, report.options.learning_rate} == {name, options[:learning_rate]}
      assert report.options.optimizer == "adam"
    end
  end

  test "a run has the preset's and the given options, and reports options without effect" do
    dir = tmp_dir!("preset")
    {:ok, games} = CartPole.demonstrations(games: 8, steps: 60)
    {:ok, corpus} = CartPole.corpus(games, into: Path.join(dir, "corpus"))
    run = [corpus: corpus, out: Path.join(dir, "run"), evaluate: false]

    log =
      capture_log(fn ->
        {:ok, report} =
          train(run ++ [preset: "quick", learning_rate: 0.01, loss: [focal_gamma: 1.0]])

        assert inspect(report.spec) == "#Sconce.Policy.Spec<vector 2 -> mlp 32-32 -> action(2)>"
        assert %{batch_size: 32, learning_rate: 0.01, epochs: 1, window_size: 1} = report.options
        assert %{focal_gamma: 1.0, label_smoothing: smoothing} = report.options.loss
        assert_in_delta smoothing, 0.1, 1.0e-6
        assert %{best_step: step, steps: step} = report
      end)

    assert log =~ "preset quick, no effect: max_files 5: a run learns from its whole corpus"
  end

  defp train(opts) do
    {:ok, run} = Trainer.start_link(opts)
    result = Trainer.await(run, 60_000)
    GenServer.stop(run)
    result
  end

  describe "merging" do
    defp merged(name, given), do: name |> Preset.get() |> Preset.merge(given)

    test "another backbone keeps the preset's options that it has, and gets a fitting window" do
      %{options: options, ignored: ignored} = merged(:quick, backbone: :gru)
      assert [60, 5, nil] == Enum.map([:window_size, :stride, :hidden_sizes], &options[&1])
      assert {:hidden_sizes, [32, 32], "the :gru backbone has no such option"} in ignored
      assert {:gru, model} = Spec.new(preset: :quick, backbone: :gru).backbone
      assert {model[:hidden_size], model[:dropout]} == {256, 0.0}

      %{options: options} = merged(:production, backbone: :mlp, hidden_sizes: [64])
      assert [1, 1, nil] == Enum.map([:window_size, :stride, :state_size], &options[&1])

      %{options: options} = merged(:production, backbone: :lstm)
      assert [60, 256, 3] == Enum.map([:window_size, :hidden_size, :num_layers], &options[&1])
    end

    test "options given with a backbone override the preset's" do
      spec = Spec.new(preset: :production, backbone: {:mamba, num_layers: 1})
      assert {:mamba, model} = spec.backbone
      assert {model[:num_layers], model[:state_size]} == {1, 32}
      assert Spec.new(preset: :production, state_size: 8) |> inspect() =~ "mamba 256x3"
    end

    test "another schedule drops the preset's restarts" do
      restarts = fn given ->
        Keyword.has_key?(merged(:production, given).options, :restart_period)
      end

      assert restarts.([]) and restarts.(lr_schedule: :cosine_restarts)
      refute restarts.(lr_schedule: :cosine)
    end

    test "a given Spec keeps its model" do
      spec = Spec.new(backbone: :gru, hidden_size: 64)
      %{options: options, ignored: ignored} = merged(:production, spec: spec)
      assert Keyword.take(options, [:backbone, :hidden_size, :state_size, :dropout]) == []
      assert options[:window_size] == 60
      assert {:state_size, 32, _why} = List.keyfind(ignored, :state_size, 0)
      refute List.keyfind(ignored, :num_layers, 0)
    end

    test "given options of the loss override the preset's, and :plain replaces them all" do
      assert merged(:standard, loss: [clamp: 9.0]).options[:loss][:label_smoothing] == 0.05

      assert merged(:standard, loss: [label_smoothing: 0.2]).options[:loss][:label_smoothing] ==
               0.2

      assert merged(:standard, loss: :plain).options[:loss] == :plain
    end

    test "unknown names and options are refused with the nearest" do
      for {wrong, message} <- [
            {[preset: "productoin"], ~r/unknown preset "productoin", did you mean :production\?/},
            {[preset: :quick, bacth_size: 3], ~r/:bacth_size, did you mean :batch_size/},
            {[preset: :quick, backbone: :gro], ~r/unknown backbone :gro, did you mean :gru/},
            {[preset: :quick, batch_size: "3"], ~r/:batch_size: expected a positive integer/},
            {[preset: :quick, learning_rate: -1], ~r/:learning_rate: expected a number/}
          ] do
        assert_raise ArgumentError, message, fn ->
          [corpus: "nowhere", out: "nowhere"] |> Keyword.merge(wrong) |> Settings.new!()
        end
      end

      assert_raise ArgumentError, ~r/unknown preset :quik/, fn -> Spec.new(preset: :quik) end

      assert_raise ArgumentError, ~r/the :mlp backbone has no option :hidden_size,/, fn ->
        Spec.new(preset: :quick, hidden_size: 3)
      end
    end
  end

  describe "the needs of a preset" do
    test "a preset for a GPU is refused, unless the device is the CPU" do
      assert {:error, %Error{kind: :unavailable, details: details} = error} =
               Preset.check(Preset.get(:rtx4090_full))

      assert %{device: :cuda, memory: bytes} = details.needs
      assert bytes > 1_000_000_000

      assert Exception.message(error) =~ ~r/^device: preset :rtx4090_full: .*, or device: :cpu\)$/

      assert :ok = Preset.check(Preset.get(:quick))
    end

    test "missing memory is an error with its size" do
      preset = merged(:full, device: :cpu)
      assert :ok = Preset.check_memory(preset, preset.memory)
      assert :ok = Preset.check_memory(preset, nil)

      assert {:error, %Error{kind: :out_of_memory, details: %{free: 5}} = error} =
               Preset.check_memory(preset, 5)

      assert Exception.message(error) =~ ~r/preset :full: needs about .* GB, and 5 B are free/
    end

    test "memory grows with the frames of a batch, and is unknown for another model" do
      of = &merged(:full, &1).memory
      [quarter, half, full] = [of.(batch_size: 64), of.(batch_size: 128), of.([])]
      assert quarter < half
      assert_in_delta full - half, 2 * (half - quarter), 4
      assert of.(window_size: 30) == half
      assert of.(epochs: 3) == full
      assert merged(:full, hidden_size: 64).memory == nil
      assert :ok = :full |> merged(hidden_size: 64, device: :cpu) |> Preset.check_memory(5)
    end
  end

  test "a preset prints in one line, and in full" do
    assert inspect(Preset.get(:mewtwo)) ==
             "#Sconce.Preset<mewtwo · mamba 256x3 · 100 epochs, batch 256, window 90 · cuda · " <>
               "Mewtwo, whose teleport takes 40 frames>"

    text = to_string(Preset.get(:mewtwo))
    assert text =~ ~r/^  hidden_size +256$/m
    assert text =~ ~r/^  characters +\["Mewtwo"\]$/m
    assert text =~ ~r/^  loss label_smoothing +0.1$/m
    assert text =~ ~r/^  keep_best +10$/m
    assert to_string(merged(:mewtwo, loss: :plain)) =~ ~r/^  loss +:plain$/m
    assert inspect(merged(:quick, backbone: {:gru, num_layers: 1})) =~ "gru 256x1"
    assert inspect(merged(:quick, spec: Spec.new(hidden_size: 64))) =~ "gru 64x2"
  end
end
