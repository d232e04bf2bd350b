defmodule Sconce.Temporal.Catalogue do
  @moduledoc false
  # Every backbone as data: its formula, its source, its state and its options.

  # The Rust table that builds the backbones is the only list of names. A row has a name, a config, and optionally a
  # comment before it.
  @table Path.expand("../../../native/nn/src/backbone/table.rs", __DIR__)
  @external_resource @table
  @rows for [_, comment, name, config] <-
              Regex.scan(~r/^(?:    \/\/\/ (.+)\n)?    "(\w+)" \w+\((\w+)\)/m, File.read!(@table)),
            do: {String.to_atom(name), {comment, config}}

  @size [type: :pos_integer, max: 65_536]
  @layers [type: :pos_integer, max: 256]
  @rate [type: :float, min: 0.0, max: 0.99]
  @dropout [
    dropout: @rate ++ [default: 0.1, doc: "Dropout rate after each layer, in training only."],
    input_dropout:
      @rate ++
        [default: 0.0, doc: "Dropout rate of whole input features of a window, in training only."]
  ]
  @input_norm [
    input_norm: [
      type: {:or, [:boolean, :auto]},
      default: :auto,
      doc: "LayerNorm on the input. `:auto`: on for every embedding except `{:vector, n}`."
    ]
  ]
  @own [
    layer_norm: [type: :boolean, default: true, doc: "LayerNorm after each layer."],
    num_heads: @size ++ [default: 4, doc: "Number of heads."],
    head_dim: @size ++ [default: 64, doc: "Width of a head."],
    window_size:
      @size ++ [default: 60, doc: "Frames that attention sees, including the current one."],
    qk_layernorm: [type: :boolean, default: true, doc: "LayerNorm of each query and key."],
    state_size: @size ++ [default: 16, doc: "State size of a channel."],
    expand_factor: @size ++ [default: 2, doc: "Inner width divided by `hidden_size`."],
    conv_size: @size ++ [default: 4, doc: "Frames that the causal convolution covers."],
    chunk_size:
      @size ++ [default: 32, doc: "Frames computed at once; it affects speed, not results."],
    attention_every: @size ++ [default: 3, doc: "Every n-th block has attention; this is n."],
    inner_size: @size ++ [default: 256, doc: "Inner width of the feed-forward layers."],
    norm_eps: [
      type: :float,
      min: 1.0e-12,
      max: 1.0,
      default: 1.0e-5,
      doc: "Constant that the norms add to the variance."
    ],
    initial_state: [
      type: :boolean,
      default: false,
      doc:
        "A game begins with a state that is stored among the weights, instead of zero. It does not learn; a new policy " <>
          "has zeros."
    ]
  ]
  @recurrent [:layer_norm, :norm_eps, :initial_state]
  @attention [:num_heads, :head_dim, :window_size, :qk_layernorm]
  @mamba [:state_size, :expand_factor, :conv_size]
  # Rotary positions (RoPE) rotate pairs of values, so the width must be even.
  @even_heads [{[:head_dim], [2]}]
  @taps [:ssm_out, :gate]
  @conv_taps [:pre_conv, :post_conv] ++ @taps

  # `fits`: a product of options that must be a multiple of another product. `options`: the default number of layers,
  # and the names of the backbone's own options, with a value where the default differs. `taps`: names of activations.
  @backbones [
    mlp: %{
      paper: "He et al. 2016 for the residual",
      formula: ["h = dropout(activation(norm(W x + b))) + skip"],
      state: "none",
      taps: [:hidden],
      options: [
        hidden_sizes: [
          type: {:list, :pos_integer},
          default: [512, 512],
          doc: "Width of each layer."
        ],
        layer_norm: [type: :boolean, default: false, doc: "LayerNorm before each activation."],
        residual: [type: :boolean, default: false, doc: "Adds each layer's input to its output."],
        activation: [
          type: {:in, [:relu, :tanh, :silu, :gelu]},
          default: :relu,
          doc: "Activation of each layer. PPO on small vectors often uses `:tanh`."
        ]
      ]
    },
    lstm: %{
      paper: "Hochreiter and Schmidhuber 1997",
      formula: [
        "i, f, o = sigmoid(W x + U h + b)",
        "g = tanh(W_g x + U_g h + b_g)",
        "c = f * c + i * g",
        "h = o * tanh(c)"
      ],
      state: "h and c of each layer, 2 x num_layers x hidden_size numbers",
      taps: [:hidden],
      options: {2, @recurrent}
    },
    gru: %{
      paper: "Cho et al. 2014",
      formula: [
        "r, z = sigmoid(W x + U h + b)",
        "n = tanh(W_n x + b_n + r * (U_n h + b_hn))",
        "h = (1 - z) * n + z * h"
      ],
      state: "h of each layer, num_layers x hidden_size numbers",
      taps: [:hidden],
      options: {2, @recurrent}
    },
    sliding_window: %{
      paper: "Vaswani et al. 2017, Beltagy et al. 2020, positions by Su et al. 2021",
      formula: [
        "q, k, v = W norm(x)                             q, k turned by their position (RoPE)",
        "x = x + W_o softmax(q k' / sqrt(head_dim)) v    over the last window_size frames",
        "x = x + W_2 gelu(W_1 norm(x))                   inner width 4 x hidden_size"
      ],
      state:
        "keys and values in a ring, num_layers x (2 x window_size x num_heads x head_dim + 1)",
      fits: @even_heads,
      taps: [:attention_weights],
      options: {2, @attention}
    },
    mamba: %{
      paper: "Gu and Dao 2023",
      formula: [
        "u, z = W norm(x)          u = silu(conv(u))",
        "dt, B, C = W_x u          dt = softplus(W_dt dt + b)",
        "h = exp(dt A) h + dt B u",
        "x = x + W_o ((C h + D u) * silu(z))"
      ],
      state:
        "the convolution's frames and h, " <>
          "num_layers x expand_factor x hidden_size x (conv_size - 1 + state_size)",
      taps: @conv_taps,
      options: {2, @mamba}
    },
    mamba_2: %{
      paper: "Dao and Gu 2024",
      formula: [
        "z, u, B, C, dt = W norm(x)          u, B, C = silu(conv(u, B, C))",
        "h = exp(dt A) h + dt u B'           one A and dt for each head",
        "x = x + W_o norm((h C + D u) * silu(z))"
      ],
      state:
        "the convolution's frames and h, num_layers x (expand_factor x hidden_size x state_size + " <>
          "(conv_size - 1) x (expand_factor x hidden_size + 2 x state_size))",
      fits: [{[:expand_factor, :hidden_size], [:head_dim]}],
      taps: @conv_taps,
      options: {2, @mamba ++ [:head_dim, :chunk_size]}
    },
    min_gru: %{
      paper: "Feng et al. 2024",
      formula: ["z = sigmoid(W_z norm(x))", "h = (1 - z) * h + z * W_h norm(x)", "x = x + h"],
      state: "h of each layer, num_layers x hidden_size numbers",
      taps: [:hidden],
      options: {2, []}
    },
    min_lstm: %{
      paper: "Feng et al. 2024",
      formula: [
        "f, i = sigmoid(W norm(x))",
        "h = f / (f + i) * h + i / (f + i) * W_h norm(x)",
        "x = x + h"
      ],
      state: "h of each layer, num_layers x hidden_size numbers",
      taps: [:hidden],
      options: {2, []}
    },
    lstm_hybrid: %{
      paper: "an LSTM under one layer of attention, as in ExPhil",
      formula: [
        "u = W lstm(x)",
        "y = norm(u + attention(u))    over the last window_size frames"
      ],
      state:
        "h and c of each LSTM layer, keys and values in a ring, " <>
          "2 x num_layers x hidden_size + 2 x window_size x num_heads x head_dim + 1",
      fits: @even_heads,
      taps: [:hidden, :attention_weights],
      options: {1, @attention}
    },
    jamba: %{
      paper: "Lieber et al. 2024",
      formula: [
        "x = x + mamba(norm(x))                            blocks of :mamba",
        "x = x + attention(norm(x)), x = x + ffn(norm(x))  each attention_every-th block"
      ],
      state:
        "of a Mamba layer expand_factor x hidden_size x (conv_size - 1 + state_size) numbers, of " <>
          "an attention layer 2 x window_size x num_heads x head_dim + 1",
      fits: @even_heads,
      taps: @conv_taps ++ [:attention_weights],
      options: {6, @mamba ++ [:attention_every] ++ @attention}
    },
    griffin: %{
      paper: "De et al. 2024",
      formula: [
        "r, i = sigmoid(W u + b)           u = conv(W_v norm(x))",
        "a = sigmoid(L)^(8 r)              h = a * h + sqrt(1 - a^2) * (i * u)",
        "x = x + W_o (gelu(W_g norm(x)) * h)",
        "x = x + W_d (gelu(W_1 norm(x)) * W_2 norm(x))",
        "each attention_every-th block has attention over window_size frames instead of the recurrence"
      ],
      state:
        "of a recurrent block conv_size x hidden_size numbers, of an attention block " <>
          "2 x window_size x hidden_size + 1",
      fits: [{[:hidden_size], [2, :num_heads]}],
      taps: @conv_taps ++ [:attention_weights],
      options:
        {6, [{:expand_factor, 3}, :conv_size, :attention_every, :num_heads, {:window_size, 32}]}
    },
    hawk: %{
      paper: "De et al. 2024",
      formula: [":griffin without attention"],
      state: "h and the convolution's frames of each block, num_layers x conv_size x hidden_size",
      taps: @conv_taps,
      options: {6, [{:expand_factor, 3}, :conv_size]}
    },
    res_lstm: %{
      paper: "the residual LSTM of slippi-ai",
      formula: ["x = x + W lstm(norm(x))    W is initialized to zero"],
      state: "h and c of each layer, 2 x num_layers x hidden_size numbers",
      taps: [:hidden],
      options: {3, [hidden_size: 512]}
    },
    tx_like: %{
      paper: "the transformer-like LSTM of slippi-ai",
      formula: [
        "x = x + W lstm(norm(x))           W is initialized to zero",
        "x = x + W_2 gelu(W_1 norm(x))     W_2 is initialized to zero"
      ],
      state: "h and c of each layer, 2 x num_layers x hidden_size numbers",
      taps: [:hidden],
      options: {3, [:expand_factor, hidden_size: 512]}
    },
    hgrn: %{
      paper: "Qin et al. 2023, with real states and an input gate",
      formula: [
        "f = g + (1 - g) sigmoid(W_f norm(x))     g is learned, and grows with the layer",
        "h = f * h + sigmoid(W_i norm(x)) * silu(W_v norm(x))",
        "x = x + W_o (norm(h) * silu(W_g norm(x)))",
        "x = x + W_2 silu(W_1 norm(x))            inner width 4 x hidden_size",
        "a small model depends on the seed: returns in the demo are 281 with seed 0, and 500, 500 and 496",
        "with seeds 1 to 3"
      ],
      state: "h of each layer, num_layers x expand_factor x hidden_size numbers",
      taps: @taps,
      options: {2, [:expand_factor]}
    },
    s4d: %{
      paper: "Gu et al. 2022, real and diagonal",
      formula: [
        "B, C = W norm(x)                        dt and A are learned, the same for every frame",
        "h = exp(dt A) h + dt B norm(x)",
        "x = x + W_o gelu(C h + D norm(x))",
        "x = x + W_d (W_1 norm(x) * silu(W_2 norm(x)))    inner width 4 x hidden_size"
      ],
      state: "h of each channel, num_layers x hidden_size x state_size numbers",
      taps: [:ssm_out],
      options: {4, [{:state_size, 64}]}
    },
    s5: %{
      paper: "Smith et al. 2023, real and diagonal",
      formula: [
        "h = exp(dt A) h + (exp(dt A) - 1) / A (B norm(x))",
        "u = gelu(C h + D norm(x))           x = x + u * sigmoid(W u)",
        "x = x + W_2 gelu(W_1 norm(x))       inner width 4 x hidden_size"
      ],
      state: "h of each layer, num_layers x state_size numbers",
      taps: @taps,
      options: {4, [{:state_size, 64}]}
    },
    retnet: %{
      paper: "Sun et al. 2023",
      formula: [
        "S = g S R + v k' / sqrt(d)          g = 1 - 2^(-5 - head), R turns keys by one frame (RoPE)",
        "heads remember 32, 64, .. frames: for short windows train with unroll: :carry; otherwise the",
        "state in a long game differs from the states in training",
        "x = x + W_o (norm(S q) * silu(W_g norm(x)))",
        "x = x + W_2 gelu(W_1 norm(x))"
      ],
      state: "S of each head, num_layers x expand_factor x hidden_size^2 / num_heads numbers",
      fits: [{[:hidden_size], [2, :num_heads]}],
      taps: @taps,
      options: {2, [:num_heads, :expand_factor]}
    },
    rwkv: %{
      paper: "Peng et al. 2023, RWKV-4",
      formula: [
        "r, k, v = W mix(norm(x), the frame before)",
        "y = (a + e^(u + k) v) / (b + e^(u + k))     a = e^-w a + e^k v    b = e^-w b + e^k",
        "x = x + W_o (sigmoid(r) * y)",
        "x = x + sigmoid(W_r m) * W_v relu(W_k m)^2  m = mix(norm(x), the frame before)"
      ],
      state: "a / b, ln b and two frames before, 4 x num_layers x hidden_size numbers",
      taps: @taps,
      options: {2, [{:expand_factor, 4}]}
    },
    gla: %{
      paper: "Yang et al. 2023",
      formula: [
        "S = S diag(a) + v k'                a = sigmoid(W_2 W_1 norm(x) + b)^(1 / 16)",
        "x = x + W_o (norm(S q / sqrt(d)) * silu(W_g norm(x)))",
        "x = x + W_4 silu(W_3 norm(x))"
      ],
      state: "S of each head, num_layers x expand_factor x hidden_size x head_dim numbers",
      fits: [{[:expand_factor, :hidden_size], [:num_heads]}],
      taps: @taps,
      options: {2, [:num_heads, :head_dim, :expand_factor]}
    },
    xlstm: %{
      paper: "Beck et al. 2024",
      formula: [
        "even layers, mLSTM: C = f C + i v k'    n = f n + i k    h = C q / max(|n q|, 1)",
        "odd layers, sLSTM: an LSTM with i = exp(..), normalised by n = f n + i",
        "computed in logarithms with the maximum subtracted, exact for any gate"
      ],
      state:
        "of an mLSTM, of e = expand_factor x hidden_size, (e / num_heads + 4) x e + num_heads " <>
          "numbers: the convolution's frames, C, n and their scale; of an sLSTM 4 x hidden_size",
      fits: [{[:hidden_size], [:num_heads]}],
      taps: @conv_taps,
      options: {4, [:num_heads, :expand_factor]}
    },
    zamba: %{
      paper: "Glorioso et al. 2024",
      formula: [
        ":mamba blocks; after every attention_every of them an attention block, with shared weights"
      ],
      state: "as :jamba, for each Mamba layer and each use of the attention block",
      fits: @even_heads,
      taps: @conv_taps ++ [:attention_weights],
      options: {6, @mamba ++ [:attention_every] ++ @attention}
    },
    gated_ssm: %{
      paper: "ExPhil's gated SSM, as a recurrence",
      formula: [
        "u, z = W norm(x)          u = silu(conv(u))",
        "a, g = sigmoid(W u + b)   h = a * h + (1 - a) * g * u",
        "x = x + W_o (h * silu(z))"
      ],
      state:
        "h and the convolution's frames, num_layers x expand_factor x hidden_size x conv_size",
      taps: @conv_taps,
      options: {2, [:expand_factor, :conv_size]}
    },
    causal_transformer: %{
      paper: "Vaswani et al. 2017, a causal transformer over frames",
      formula: [":sliding_window, deeper and with a short context"],
      state: "as :sliding_window",
      fits: @even_heads,
      taps: [:attention_weights],
      options: {6, [{:num_heads, 8}, {:head_dim, 32}, {:window_size, 20}, :qk_layernorm]}
    }
  ]

  # The forms of other programs: `backbone: name, compat: program` has the description of `@forms` that stands here.
  @compat [
    exphil: [
      mamba: :exphil_mamba,
      mamba_2: :exphil_mamba_2,
      gated_ssm: :exphil_gated_ssm,
      jamba: :exphil_jamba,
      sliding_window: :exphil_attention,
      lstm_hybrid: :exphil_lstm_hybrid,
      res_lstm: :exphil_deep_res_lstm
    ]
  ]

  # The descriptions of `@compat`, as `@backbones`. Their options are complete, and none of them depends on the
  # embedding. `row`: the row of the Rust table, if it has another name. `fixed`: options of the row that the form sets.
  @forms [
    exphil_mamba: %{
      paper: "Gu and Dao 2023, as in ExPhil",
      formula: [
        "u, z = W norm(x)          a = silu(conv(u))          B, C = W_bc a",
        "dt = softplus(W_dt W_r a), at least 0.001 and at most 0.1",
        "h = exp(dt A) h + mean(dt) B a                       A is -1, -2, .., -state_size",
        "x = x + W_o ((C h) * silu(z))",
        "also the form of ExPhil's :mamba_2 for windows of more than 32 frames"
      ],
      state:
        "the convolution's frames and h, " <>
          "num_layers x expand_factor x hidden_size x (conv_size - 1 + state_size)",
      taps: @conv_taps,
      fixed: [decays_input: false],
      options: {2, @mamba}
    },
    exphil_mamba_2: %{
      paper: "Dao and Gu 2024, as in ExPhil for windows of at most 32 frames",
      formula: [
        ":mamba, compat: :exphil, whose new part decays at once:",
        "h = exp(dt A) (h + mean(dt) B a)"
      ],
      state: "as :mamba",
      taps: @conv_taps,
      row: :exphil_mamba,
      fixed: [decays_input: true],
      options: {2, @mamba}
    },
    exphil_gated_ssm: %{
      paper: "the gated SSM of ExPhil, without a recurrence",
      formula: [
        "u, z = W norm(x)          a = silu(W_c mean(u))      B, C = W_bc a",
        "gate = sigmoid(mean(softplus(W_dt W_r a)))           g = gate * sigmoid(B C) * a",
        "y = g + (1 - gate) * w * g                           w falls by 0.9 per frame before the last",
        "x = x + W_o (y * silu(z))",
        "mean(u) is that of the last conv_size frames"
      ],
      state: "none: it reads whole windows",
      taps: @conv_taps,
      options: {2, @mamba}
    },
    exphil_jamba: %{
      paper: "Lieber et al. 2024, as in ExPhil",
      formula: [
        "x[t, d] = x[t, d] + sin(t / (1 + 0.01 d))            t is the place in the window",
        "x = x + gated_ssm(norm(x))                           blocks of :gated_ssm, compat: :exphil",
        "x = x + attention(norm(x)), x = x + ffn(norm(x))     each attention_every-th block",
        "attention sees the whole window; it norms queries and keys without weights, and turns neither"
      ],
      state: "none: it reads whole windows",
      fits: @even_heads,
      taps: @conv_taps,
      options: {6, @mamba ++ [:attention_every, :num_heads, :head_dim]}
    },
    exphil_attention: %{
      paper: "the attention of ExPhil; it reads whole windows and has no step",
      formula: [
        "x[t, d] = (W x + b)[t, d] + sin(t / (1 + 0.01 d))    t counts from the window's first frame",
        "x = norm(x + softmax(q k' / sqrt(head_dim)) v)       q, k, v = W x + b",
        "x = norm(x + W_2 gelu(W_1 x))                        the exact gelu"
      ],
      state: "none",
      fits: [
        {[:head_dim], [2]},
        {[:hidden_size], [:num_heads, :head_dim]},
        {[:num_heads, :head_dim], [:hidden_size]}
      ],
      taps: [:attention_weights],
      options: {2, [:num_heads, :head_dim, :window_size, :inner_size]}
    },
    exphil_lstm_hybrid: %{
      paper: "the LSTM with attention of ExPhil",
      formula: [
        "u = W lstm(x) + b             a norm with eps 1e-6 on the input and after each LSTM layer",
        "y = norm(u + attention(u))    over the last window_size frames, width num_heads x head_dim"
      ],
      state:
        "h and c of each LSTM layer, keys and values in a ring, " <>
          "2 x num_layers x hidden_size + 2 x window_size x num_heads x head_dim + 1",
      fits: @even_heads,
      taps: [:hidden, :attention_weights],
      input_norm: true,
      options: {1, [:num_heads, :head_dim, :window_size, :initial_state]}
    },
    exphil_deep_res_lstm: %{
      paper: "the residual LSTM of ExPhil",
      formula: [
        "x = W x + b",
        "x = x + W lstm(norm(x)) + b    the norms have eps 1e-6, and one follows the last layer"
      ],
      state: "h and c of each layer, 2 x num_layers x hidden_size numbers",
      taps: [:hidden],
      options: {2, [:initial_state]}
    }
  ]

  layered = fn num_layers, names ->
    {hidden_size, names} =
      Enum.split_with(names, &match?({:hidden_size, _}, &1))
      |> then(fn {given, rest} -> {Keyword.get(given, :hidden_size, 256), rest} end)

    own =
      for name <- names do
        case name do
          {name, default} -> {name, Keyword.replace!(@own[name], :default, default)}
          name -> {name, @own[name]}
        end
      end

    [
      hidden_size: @size ++ [default: hidden_size, doc: "Width of the layers and of the output."],
      num_layers: @layers ++ [default: num_layers, doc: "Layers on top of each other."]
    ] ++ own ++ @input_norm ++ @dropout
  end

  for {name, backbone} <- @backbones ++ @forms,
      row = backbone[:row] || name,
      !@rows[row],
      do: raise("#{@table} has no #{row}")

  # The options of rows that are not described above, by their config.
  configs = %{
    "StackConfig" => [],
    "ExpandConfig" => [:expand_factor],
    "StateConfig" => [:state_size],
    "HeadsConfig" => [:num_heads, :expand_factor],
    "AttentionConfig" => @attention
  }

  @others (for {name, {comment, config}} <- @rows,
               !Keyword.has_key?(@backbones ++ @forms, name) do
             own = configs[config] || raise("#{name} of #{@table} is described nowhere")
             paper = String.trim_trailing(comment, ".")
             formula = ["see native/nn/src/backbone/table.rs"]

             {name,
              %{paper: paper, formula: formula, state: "its own", taps: [], options: {2, own}}}
           end)

  @all (for {name, backbone} <- @backbones ++ @others do
          options =
            case backbone.options do
              {num_layers, names} -> layered.(num_layers, names)
              given -> given ++ @dropout
            end

          {name, Map.merge(%{fits: []}, %{backbone | options: options})}
        end)

  @compatible (for {program, names} <- @compat, {name, row} <- names do
                 form =
                   Map.merge(%{fits: [], input_norm: false, row: row, fixed: []}, @forms[row])

                 {num_layers, names} = form.options
                 norm = [type: :boolean, default: form.input_norm, doc: "LayerNorm on the input."]
                 own = num_layers |> layered.(names) |> Keyword.replace!(:input_norm, norm)

                 compat = [
                   type: {:in, [program]},
                   default: program,
                   doc: "Formulas of a program."
                 ]

                 {{name, program}, {form.row, form.fixed},
                  %{form | options: [{:compat, compat} | own]}}
               end)

  @type backbone :: %{
          paper: String.t(),
          formula: [String.t()],
          state: String.t(),
          fits: [{[atom], [atom | pos_integer]}],
          taps: [atom],
          options: keyword
        }

  @doc "All backbones by name, in display order."
  @spec all() :: [{atom, backbone}]
  def all, do: @all

  @doc "The forms of other programs as `{{name, program}, backbone}`, in display order."
  @spec forms() :: [{{atom, atom}, backbone}]
  def forms, do: for({form, _row, backbone} <- @compatible, do: {form, backbone})

  @doc "The row of the Rust table that builds a backbone, and the options of the row that the form sets."
  @spec row(atom, atom) :: {atom, keyword}
  def row(name, nil), do: {name, []}

  def row(name, program),
    do:
      Enum.find_value(@compatible, {name, []}, fn {form, row, _} ->
        if form == {name, program}, do: row
      end)

  @doc "The name and the program of a row of the Rust table with these options."
  @spec of_row(atom, map) :: {atom, atom}
  def of_row(row, options) do
    Enum.find_value(@compatible, {row, nil}, fn {form, {own, fixed}, _} ->
      if own == row and Enum.all?(fixed, fn {name, value} -> options[name] == value end), do: form
    end)
  end

  @doc "The constraints between options, as sentences to append."
  def needs(fits), do: Enum.map_join(fits, &" Needs #{fit(&1)}.")

  @doc "A constraint between options, in words."
  def fit({of, divisor}), do: "#{product(of)} to be a multiple of #{product(divisor)}"

  @doc "A product of factors, in words."
  def product(factors), do: Enum.map_join(factors, " x ", &to_string/1)
end
