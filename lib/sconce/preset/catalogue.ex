defmodule Sconce.Preset.Catalogue do
  @moduledoc false
  # The presets as data, with the names and values of ExPhil, and their translation to options of Sconce.

  # Values of ExPhil's command line that a preset does not set.
  @defaults [
    optimizer: :adam,
    learning_rate: 1.0e-4,
    lr_schedule: :constant,
    warmup_steps: 1,
    restart_period: 1000,
    restart_mult: 2,
    window_size: 60,
    stride: 5,
    accumulation_steps: 1,
    max_grad_norm: 1.0,
    precision: :f32,
    dropout: 0.0,
    neutral_weight: 0.25,
    button_weight: 2.0,
    label_smoothing: 0.1,
    focal_gamma: 3.0,
    stick_edge_weight: 2.0,
    entropy_weight: 0.01,
    mirror_prob: 0.5,
    noise_prob: 0.3,
    noise_scale: 0.01,
    patience: 5,
    min_delta: 0.01,
    ema_decay: 0.999,
    val_split: 0.1
  ]

  # Each switch with the options that have an effect only if the switch is on.
  @switches [
    augment: [:mirror_prob, :noise_prob, :noise_scale],
    early_stopping: [:patience, :min_delta],
    ema: [:ema_decay]
  ]
  @restarts [:restart_period, :restart_mult]

  # Maps each ExPhil name to an option, to an option of `:loss`, or to nothing with the reason.
  @mapping [
    backbone: {:option, :backbone},
    hidden_sizes: {:option, :hidden_sizes},
    num_layers: {:option, :num_layers},
    num_heads: {:option, :num_heads},
    state_size: {:option, :state_size},
    expand_factor: {:option, :expand_factor},
    dropout: {:option, :dropout},
    epochs: {:option, :epochs},
    batch_size: {:option, :batch_size},
    accumulation_steps: {:option, :accumulation_steps},
    window_size: {:option, :window_size},
    stride: {:option, :stride},
    character: {:option, :characters},
    mirror_prob: {:option, :mirror},
    noise_prob: {:option, :noise},
    noise_scale: {:option, :noise_scale},
    neutral_weight: {:option, :neutral_weight},
    button_weight: {:loss, :button_weight},
    label_smoothing: {:loss, :label_smoothing},
    focal_gamma: {:loss, :focal_gamma},
    stick_edge_weight: {:loss, :stick_edge_weight},
    entropy_weight: {:loss, :entropy_weight},
    optimizer: {:option, :optimizer},
    learning_rate: {:option, :learning_rate},
    lr_schedule: {:option, :lr_schedule},
    warmup_steps: {:option, :warmup_steps},
    restart_period: {:option, :restart_period},
    restart_mult: {:option, :restart_mult},
    max_grad_norm: {:option, :max_grad_norm},
    precision: {:option, :precision},
    ema_decay: {:option, :ema_decay},
    val_split: {:option, :val_split},
    patience: {:option, :patience},
    min_delta: {:option, :min_delta},
    max_files: {:nothing, "a run learns from its whole corpus: import that many games"},
    keep_best: {:option, :keep_best},
    precompute: {:nothing, "frames are embedded while they are loaded"}
  ]

  # Backbones that Sconce names differently, by ExPhil's name, with the options that select them in Sconce.
  @backbones [
    attention: [backbone: :sliding_window, head_dim: 64],
    decision_transformer: [backbone: :causal_transformer]
  ]

  # The width of ExPhil's temporal backbones, regardless of hidden_sizes in its presets.
  @hidden_size 256
  @hidden_sizes "ExPhil's temporal backbones ignore it and have 256, which is hidden_size in Sconce"

  @augment [augment: true, mirror_prob: 0.5, noise_prob: 0.3, noise_scale: 0.01]
  @regularized @augment ++ [label_smoothing: 0.1]
  @ema [ema: true, ema_decay: 0.999]
  @slow_ema [ema: true, ema_decay: 0.9995]
  @quick [augment: true, val_split: 0.1]
  @thorough @regularized ++
              [val_split: 0.15, early_stopping: true, patience: 10, min_delta: 0.001] ++
              [lr_schedule: :cosine_restarts, learning_rate: 1.0e-4] ++
              [restart_period: 5000, restart_mult: 2, accumulation_steps: 4, keep_best: 10] ++
              @slow_ema

  mamba = fn window, layers, more ->
    [backbone: :mamba, window_size: window, num_layers: layers] ++ more
  end

  short = fn backbone, more ->
    [epochs: 3, max_files: 30, batch_size: 256, hidden_sizes: [64, 64], backbone: backbone] ++
      [window_size: 30, num_layers: 1] ++ more ++ @quick
  end

  @production [epochs: 100, batch_size: 256, hidden_sizes: [256, 256], warmup_steps: 2000] ++
                mamba.(60, 3, state_size: 32, expand_factor: 2) ++ @thorough

  # `megabytes` is the peak memory of a process that runs two steps on replays on a CPU, rounded up.
  @presets [
    quick: %{
      megabytes: 200,
      for: "to check that everything works",
      values: [epochs: 1, max_files: 5, batch_size: 32, hidden_sizes: [32, 32]]
    },
    standard: %{
      megabytes: 200,
      for: "a balanced run without a GPU",
      values:
        [epochs: 10, max_files: 50, batch_size: 64, hidden_sizes: [64, 64]] ++
          [augment: true, mirror_prob: 0.5, noise_prob: 0.2, noise_scale: 0.01] ++
          [label_smoothing: 0.05, val_split: 0.1, early_stopping: true, patience: 5] ++
          [lr_schedule: :cosine, learning_rate: 3.0e-4, precompute: true]
    },
    full_cpu: %{
      megabytes: 200,
      for: "the best run without a GPU",
      values:
        [epochs: 30, max_files: 200, batch_size: 64, hidden_sizes: [128, 128]] ++
          [val_split: 0.1, early_stopping: true, patience: 7, min_delta: 0.005] ++
          [lr_schedule: :cosine, learning_rate: 1.0e-4, warmup_steps: 500] ++
          [keep_best: 3, precompute: true] ++ @regularized ++ @ema
    },
    gpu_quick: %{
      megabytes: 600,
      for: "to check that a GPU works",
      device: :cuda,
      values:
        [epochs: 3, max_files: 20, batch_size: 256, hidden_sizes: [64, 64]] ++
          mamba.(30, 1, @quick)
    },
    gpu_mlp_quick: %{
      megabytes: 200,
      for: "the fastest way to try something",
      device: :cuda,
      values:
        [epochs: 5, max_files: 50, batch_size: 256, hidden_sizes: [128, 128]] ++
          [augment: true, mirror_prob: 0.5, val_split: 0.1, precompute: true] ++
          [lr_schedule: :cosine, learning_rate: 3.0e-4, warmup_steps: 100]
    },
    gpu_lstm_quick: %{
      megabytes: 450,
      for: "to try an LSTM",
      device: :cuda,
      values: short.(:lstm, [])
    },
    gpu_gru_quick: %{megabytes: 400, for: "to try a GRU", device: :cuda, values: short.(:gru, [])},
    gpu_attention_quick: %{
      megabytes: 500,
      for: "to try attention",
      device: :cuda,
      values: short.(:attention, num_heads: 4)
    },
    gpu_standard: %{
      megabytes: 1300,
      for: "a whole run with everything",
      device: :cuda,
      values:
        [epochs: 20, max_files: 100, batch_size: 256, hidden_sizes: [128, 128]] ++
          mamba.(60, 2, val_split: 0.1, early_stopping: true, patience: 5) ++
          [lr_schedule: :cosine, learning_rate: 1.0e-4, warmup_steps: 500, keep_best: 5] ++
          @regularized ++ @ema
    },
    full: %{
      megabytes: 1300,
      for: "high quality, from all games",
      device: :cuda,
      values:
        [epochs: 50, batch_size: 256, hidden_sizes: [256, 256], accumulation_steps: 2] ++
          mamba.(60, 2, val_split: 0.1, early_stopping: true, patience: 7, min_delta: 0.005) ++
          [lr_schedule: :cosine, learning_rate: 1.0e-4, warmup_steps: 1000, keep_best: 5] ++
          @regularized ++ @ema
    },
    production: %{megabytes: 2100, for: "the best run", device: :cuda, values: @production},
    rtx4090_quick: %{
      megabytes: 1000,
      for: "to check that 24 GB are used",
      device: :cuda,
      values:
        [epochs: 3, max_files: 30, batch_size: 512, hidden_sizes: [128, 128]] ++
          mamba.(30, 1, @quick)
    },
    rtx4090_standard: %{
      megabytes: 2400,
      for: "a whole run in 24 GB",
      device: :cuda,
      values:
        [epochs: 20, max_files: 200, batch_size: 512, hidden_sizes: [256, 256]] ++
          mamba.(60, 2, state_size: 16, val_split: 0.1, early_stopping: true, patience: 5) ++
          [lr_schedule: :cosine, learning_rate: 1.0e-4, warmup_steps: 500, keep_best: 5] ++
          @regularized ++ @ema
    },
    rtx4090_full: %{
      megabytes: 3600,
      for: "the best run in 24 GB",
      device: :cuda,
      values:
        [epochs: 50, batch_size: 512, hidden_sizes: [256, 256], warmup_steps: 1000] ++
          mamba.(60, 3, state_size: 32, expand_factor: 2) ++ @thorough
    },
    mewtwo: %{
      megabytes: 3000,
      for: "Mewtwo, whose teleport takes 40 frames",
      device: :cuda,
      values: Keyword.merge(@production, character: "Mewtwo", window_size: 90)
    },
    ganondorf: %{
      megabytes: 2100,
      for: "Ganondorf",
      device: :cuda,
      values: Keyword.merge(@production, character: "Ganondorf", window_size: 60)
    },
    link: %{
      megabytes: 2500,
      for: "Link, whose boomerang comes back",
      device: :cuda,
      values: Keyword.merge(@production, character: "Link", window_size: 75)
    },
    gameandwatch: %{
      megabytes: 1600,
      for: "Mr. Game & Watch",
      device: :cuda,
      values: Keyword.merge(@production, character: "Mr. Game & Watch", window_size: 45)
    },
    zelda: %{
      megabytes: 2100,
      for: "Zelda",
      device: :cuda,
      values: Keyword.merge(@production, character: "Zelda", window_size: 60)
    }
  ]

  # Batch and window that ExPhil's guide recommends for a card with this memory in GB.
  @cards [
    rtx_3090: [memory: 24, batch_size: 256, window_size: 60],
    rtx_4090: [memory: 24, batch_size: 256, window_size: 90],
    rtx_5090: [memory: 32, batch_size: 512, window_size: 120],
    a100_40gb: [memory: 40, batch_size: 512, window_size: 120],
    a100_80gb: [memory: 80, batch_size: 1024, window_size: 180]
  ]

  # Options with which ExPhil's command line trains, regardless of the preset.
  @in_effect [
    embedding: {:melee, layout: :packed, previous_action: false},
    dual_port: false,
    loss_on: :last,
    sampling: :buttons,
    action_oversample: 3.0
  ]
  @loss_in_effect [focal_heads: :bernoulli]
  # Steps of a cosine, regardless of the length of the run.
  @decay_steps 10_000
  @no_dropout "ExPhil's loss runs the policy as in play, without dropout"
  @no_ema "ExPhil averages once an epoch, which leaves an average close to the first weights"

  def names, do: Keyword.keys(@presets)

  @doc "Returns the recommendations for cards."
  def cards, do: @cards

  @doc """
  Returns options and values without effect of `translate/1` as ExPhil's command line trains with them.
  """
  @spec in_effect(keyword) :: {keyword, [{atom, term, String.t()}]}
  def in_effect(values) do
    {options, ignored} = values |> with_schedule() |> translate()
    {ema, options} = Keyword.pop(options, :ema_decay)
    horizon = if options[:lr_schedule] == :cosine, do: [decay_steps: @decay_steps], else: []
    dropout = if options[:backbone] in [:lstm, :gru, :sliding_window], do: 0.1, else: 0.0

    gone = [
      dropout != 0.0 && {:dropout, dropout, @no_dropout},
      ema && {:ema_decay, ema, @no_ema}
    ]

    options =
      options
      |> Keyword.merge(@in_effect ++ horizon)
      |> Keyword.update!(:loss, &Keyword.merge(&1, @loss_in_effect))

    {options, ignored ++ Enum.filter(gone, & &1)}
  end

  # The defaults of Mamba override the schedule of a preset that names none.
  defp with_schedule(values) do
    if values[:backbone] == :mamba and values[:lr_schedule] == nil do
      restarts = [lr_schedule: :cosine_restarts] ++ Keyword.take(@defaults, @restarts)
      values ++ restarts
    else
      values
    end
  end

  @doc "Returns a preset: its purpose, its device, and its values under ExPhil's names."
  def fetch!(name), do: Keyword.fetch!(@presets, name)

  @doc "Returns the mapping from ExPhil's names to options of Sconce."
  def mapping, do: @mapping

  @doc "Returns the backbones with another name in ExPhil, as pairs of that name and the name in Sconce."
  def backbones, do: for({name, own} <- @backbones, do: {name, own[:backbone]})

  @doc "Translates a preset: returns options of Sconce, and the values without effect with their reasons."
  @spec translate(keyword) :: {keyword, [{atom, term, String.t()}]}
  def translate(values) do
    values = complete(values)

    rows =
      for {name, to} <- @mapping, Keyword.has_key?(values, name) do
        place(to, name, values[name], values[:backbone])
      end

    rows = List.flatten(rows)
    loss = for {:loss, name, value} <- rows, do: {name, value}
    options = for {:option, name, value} <- rows, do: {name, value}
    {options ++ [loss: loss], for({:nothing, name, value, why} <- rows, do: {name, value, why})}
  end

  @doc "Returns the window and the stride of a backbone: a backbone without memory learns from single frames."
  def windows(:mlp), do: [window_size: 1, stride: 1]
  def windows(_temporal), do: Keyword.take(@defaults, [:window_size, :stride])

  defp complete(values) do
    backbone = Keyword.get(values, :backbone, :mlp)
    unread = Enum.flat_map(@switches, fn {on, names} -> if values[on], do: [], else: names end)
    unread = if values[:lr_schedule] == :cosine_restarts, do: unread, else: @restarts ++ unread

    @defaults
    |> Keyword.drop(unread)
    |> Keyword.merge(windows(backbone))
    |> Keyword.merge([backbone: backbone] ++ values)
  end

  defp place(_option, :hidden_sizes, sizes, backbone) when backbone != :mlp do
    [{:option, :hidden_size, @hidden_size}, {:nothing, :hidden_sizes, sizes, @hidden_sizes}]
  end

  defp place(_option, :backbone, name, _backbone) do
    own = Keyword.get(@backbones, name, backbone: name)
    for {option, value} <- own, do: {:option, option, value}
  end

  defp place(_option, :character, name, _backbone), do: {:option, :characters, [name]}
  defp place({:nothing, why}, name, value, _backbone), do: {:nothing, name, value, why}
  defp place({kind, name}, _name, value, _backbone), do: {kind, name, value}
end
