defmodule Sconce.Temporal.Catalogue do
  @moduledoc false
  # Every backbone as data: what it computes, where that comes from, what it remembers, its options.

  # The one list of names is the table that builds them: a name, the config behind it, and a comment before it.
  @table Path.expand("../../../native/nn/src/backbone/table.rs", __DIR__)
  @external_resource @table
  @rows for [_, comment, name, config] <-
              Regex.scan(~r/^(?:    \/\/\/ (.+)\n)?    "(\w+)" \w+\((\w+)\)/m, File.read!(@table)),
            do: {String.to_atom(name), {comment, config}}

  @size [type: :pos_integer, max: 65_536]
  @layers [type: :pos_integer, max: 256]
  @rate [type: :float, min: 0.0, max: 0.99]
  @dropout [
    dropout: @rate ++ [default: 0.1, doc: "After each layer, in training only."],
    input_dropout: @rate ++ [default: 0.0, doc: "Whole features of a window, in training only."]
  ]
  @input_norm [
    input_norm: [
      type: {:or, [:boolean, :auto]},
      default: :auto,
      doc: "LayerNorm on the input. `:auto`: on Melee frames, not on a plain vector."
    ]
  ]
  @own [
    layer_norm: [type: :boolean, default: true, doc: "LayerNorm after each layer."],
    num_heads: @size ++ [default: 4, doc: "Heads, side by side."],
    head_dim: @size ++ [default: 64, doc: "Width of a head."],
    window_size:
      @size ++ [default: 60, doc: "Frames that attention sees, the present one among them."],
    qk_layernorm: [type: :boolean, default: true, doc: "LayerNorm of each query and key."],
    state_size: @size ++ [default: 16, doc: "States of a channel."],
    expand_factor: @size ++ [default: 2, doc: "Inner width over `hidden_size`."],
    conv_size: @size ++ [default: 4, doc: "Frames under the causal convolution."],
    chunk_size: @size ++ [default: 32, doc: "Frames worked on at once; no number depends on it."],
    attention_every: @size ++ [default: 3, doc: "Of so many blocks the last one attends."]
  ]
  @attention [:num_heads, :head_dim, :window_size, :qk_layernorm]
  @mamba [:state_size, :expand_factor, :conv_size]
  # Positions turn pairs of numbers.
  @even_heads [{[:head_dim], [2]}]
  @taps [:ssm_out, :gate]
  @conv_taps [:pre_conv, :post_conv] ++ @taps

  # `fits`: a product of options that must be a multiple of another. `options`: layers, and the names
  # of its own options, with other defaults where the family has them. `taps`: activations by name.
  @backbones [
    mlp: %{
      paper: "He et al. 2016 for the residual",
      formula: ["h = dropout(relu(norm(W x + b))) + skip"],
      state: "none",
      taps: [:hidden],
      options: [
        hidden_sizes: [
          type: {:list, :pos_integer},
          default: [512, 512],
          doc: "Width of each layer."
        ],
        layer_norm: [type: :boolean, default: false, doc: "LayerNorm before each relu."],
        residual: [type: :boolean, default: false, doc: "Adds each layer's input to its output."]
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
      options: {2, [:layer_norm]}
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
      options: {2, [:layer_norm]}
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
        "x = x + mamba(norm(x))                          blocks of :mamba",
        "x = x + attention(norm(x)), x = x + ffn(norm(x))  each attention_every-th block"
      ],
      state:
        "of a Mamba layer expand_factor x hidden_size x (conv_size - 1 + state_size) numbers, of " <>
          "one that attends 2 x window_size x num_heads x head_dim + 1",
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
        "each attention_every-th block attends over window_size frames in place of the recurrence"
      ],
      state:
        "of a recurrent block conv_size x hidden_size numbers, of one that attends " <>
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
      formula: ["x = x + W lstm(norm(x))    W is zero at first"],
      state: "h and c of each layer, 2 x num_layers x hidden_size numbers",
      taps: [:hidden],
      options: {3, [hidden_size: 512]}
    },
    tx_like: %{
      paper: "the transformer-like LSTM of slippi-ai",
      formula: [
        "x = x + W lstm(norm(x))           W is zero at first",
        "x = x + W_2 gelu(W_1 norm(x))     W_2 is zero at first"
      ],
      state: "h and c of each layer, 2 x num_layers x hidden_size numbers",
      taps: [:hidden],
      options: {3, [:expand_factor, hidden_size: 512]}
    },
    hgrn: %{
      paper: "Qin et al. 2023, on the real line and with an input gate",
      formula: [
        "f = g + (1 - g) sigmoid(W_f norm(x))     g, learned, grows with the layer",
        "h = f * h + sigmoid(W_i norm(x)) * silu(W_v norm(x))",
        "x = x + W_o (norm(h) * silu(W_g norm(x)))",
        "x = x + W_2 silu(W_1 norm(x))            inner width 4 x hidden_size",
        "what a small one learns hangs on the seed: the demo's returns are 281 with 0, 500, 500 and 496",
        "with 1 to 3"
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
        "S = g S R + v k' / sqrt(d)          g = 1 - 2^(-5 - head), R turns keys by a frame (RoPE)",
        "heads remember 32, 64, .. frames: not meant for windows as short as the demo's, or train it",
        "with unroll: :carry, or the state that a game carries leaves what was trained",
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
        "all in logarithms with the largest taken out, exact at any gate"
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
        ":mamba blocks; after each attention_every of them one attention block, always the same weights"
      ],
      state: "of each Mamba layer and of each place of the attention block as those of :jamba",
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

  for {name, _backbone} <- @backbones, !@rows[name], do: raise("#{@table} has no #{name}")

  # What a row that is not described above has: the options of a config that several share.
  configs = %{
    "StackConfig" => [],
    "ExpandConfig" => [:expand_factor],
    "StateConfig" => [:state_size],
    "HeadsConfig" => [:num_heads, :expand_factor],
    "AttentionConfig" => @attention
  }

  @others (for {name, {comment, config}} <- @rows, !Keyword.has_key?(@backbones, name) do
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

  @type backbone :: %{
          paper: String.t(),
          formula: [String.t()],
          state: String.t(),
          fits: [{[atom], [atom | pos_integer]}],
          taps: [atom],
          options: keyword
        }

  @doc "Backbones by name, in the order in which they are shown."
  @spec all() :: [{atom, backbone}]
  def all, do: @all

  @doc "What options need of each other, as sentences behind another one."
  def needs(fits), do: Enum.map_join(fits, &" Needs #{fit(&1)}.")

  @doc "What options need of each other, in words."
  def fit({of, divisor}), do: "#{product(of)} to be a multiple of #{product(divisor)}"

  @doc "Factors in words."
  def product(factors), do: Enum.map_join(factors, " x ", &to_string/1)
end
