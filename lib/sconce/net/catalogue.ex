defmodule Sconce.Net.Catalogue do
  @moduledoc false
  # The layers of `Sconce.Net`: their arguments, their options and their documentation.

  alias Sconce.Options

  @functions [:relu, :relu6, :sigmoid, :tanh, :silu, :gelu, :hard_swish]
  @size [type: :pos_integer]
  @sizes [type: {:or, [:pos_integer, {:list, :pos_integer}]}]
  @padding {:or, [:non_neg_integer, {:list, :non_neg_integer}, :same]}
  @activation [
    activation: [
      type: {:in, [:none | @functions]},
      default: :none,
      doc: "Function of each output."
    ]
  ]
  @bias [bias: [type: :boolean, default: true, doc: "Adds a learned number to each output."]]
  @stride [stride: @sizes ++ [default: 1, doc: "Distance between two places of the kernel."]]
  @of_padding [
    padding: [
      type: @padding,
      default: 0,
      doc:
        "Zeros before and after each axis. `:same` keeps the shape, with an odd kernel and stride 1."
    ]
  ]
  @dilation [dilation: @sizes ++ [default: 1, doc: "Distance between two numbers of the kernel."]]
  @groups [groups: @size ++ [default: 1, doc: "Groups of channels, each with its own filters."]]
  @of_transpose [
    padding: [
      type: {:or, [:non_neg_integer, {:list, :non_neg_integer}]},
      default: 0,
      doc: "Outputs that are cut off before and after each axis."
    ],
    output_padding: [
      type: {:or, [:non_neg_integer, {:list, :non_neg_integer}]},
      default: 0,
      doc: "Outputs that are added after each axis, fewer than the stride."
    ]
  ]
  @of_pool [
    stride: [
      type: {:or, [:pos_integer, {:list, :pos_integer}, nil]},
      default: nil,
      doc: "Distance between two windows; `nil` is the size of the window."
    ],
    padding: [
      type: {:or, [:non_neg_integer, {:list, :non_neg_integer}]},
      default: 0,
      doc: "Places before and after each axis."
    ]
  ]
  @count [
    count_padding: [type: :boolean, default: true, doc: "Counts padding as zeros of the mean."]
  ]
  @norm [
    epsilon: [type: :float, above: 0, max: 1, default: 1.0e-5, doc: "Added to the variance."],
    momentum: [
      type: :float,
      min: 0,
      max: 1,
      default: 0.1,
      doc: "Weight of a batch in the running mean and variance."
    ]
  ]

  @sequence [
    sequence: [
      type: :boolean,
      default: true,
      doc: "Whether the output is the state at each time, `[size, t]`, or the last one, `[size]`."
    ]
  ]

  # {name, arguments, options, documentation}
  @layers [
    {:conv, [filters: @size, kernel: @sizes],
     @stride ++ @of_padding ++ @dilation ++ @groups ++ @bias ++ @activation,
     "Convolution of images `[c, h, w]` or signals `[c, t]`."},
    {:depthwise, [kernel: @sizes], @stride ++ @of_padding ++ @dilation ++ @bias ++ @activation,
     "Convolution of each channel with one filter of its own."},
    {:conv_transpose, [filters: @size, kernel: @sizes],
     [
       stride:
         @sizes ++ [default: 1, doc: "Distance between the places of two neighbouring inputs."]
     ] ++
       @of_transpose ++ @dilation ++ @groups ++ @bias ++ @activation,
     "Transposed convolution, which enlarges by the stride: an axis of `n` becomes one of `(n - 1) * stride - 2 * padding + " <>
       "dilation * (kernel - 1) + output_padding + 1`."},
    {:batch_norm, [], @norm ++ @activation,
     "Batch norm of each channel. Packing folds it into a convolution."},
    {:activation, [function: [type: {:in, @functions}]], [],
     "A function of each number. The name alone will do: `:relu`."},
    {:max_pool, [kernel: @sizes], @of_pool, "The largest number of each window."},
    {:mean_pool, [kernel: @sizes], @of_pool ++ @count, "The mean of each window."},
    {:global_mean, [], [], "The mean of each channel, `[c]`."},
    {:global_max, [], [], "The largest number of each channel, `[c]`."},
    {:upsample, [factor: @sizes], [], "Repeats each number `factor` times along each axis."},
    {:flatten, [], [], "All numbers as a vector, channels first."},
    {:dense, [size: @size], @bias ++ @activation, "A linear function of a vector."},
    {:embed, [size: @size], [], "A learned vector for each token: `[t]` becomes `[size, t]`."},
    {:attention, [heads: @size], [], "Adds self-attention over `t` to `[c, t]`, without a mask."},
    {:gru, [size: @size], @sequence, "A GRU over `t` of `[c, t]`, from a state of zeros."},
    {:lstm, [size: @size], @sequence, "An LSTM over `t` of `[c, t]`, from a state of zeros."},
    {:residual, [layers: [type: :any]], [], "Adds the output of layers to their input."},
    {:concat, [branches: [type: :any]], [],
     "Lists of layers of one input, joined along the channels."},
    {:inputs, [branches: [type: :any]], [],
     "Layers of each named input, joined along the channels. It is the first layer."}
  ]
  @names for {name, _arguments, _options, _doc} <- @layers, do: name

  @doc "Names of layers."
  def names, do: @names

  @doc "Functions of an activation."
  def functions, do: @functions

  @doc "The arguments and the options of a layer."
  @spec layer(atom) :: {Options.schema(), Options.schema()}
  for {name, arguments, options, _doc} <- @layers do
    def layer(unquote(name)),
      do: {unquote(Macro.escape(arguments)), unquote(Macro.escape(options))}
  end

  @doc "A table of layers."
  @spec table() :: String.t()
  def table do
    rows =
      for {name, arguments, _options, doc} <- @layers,
          do: "| `#{form(name, Keyword.keys(arguments))}` | #{doc} |\n"

    "| layer | result |\n|---|---|\n#{rows}"
  end

  @doc "The options of layers that have some."
  @spec options() :: String.t()
  def options do
    for {name, _arguments, [_ | _] = options, _doc} <- @layers,
        into: "",
        do: "`#{inspect(name)}`\n\n#{Options.docs(options)}\n\n"
  end

  defp form(name, []), do: inspect(name)
  defp form(name, arguments), do: "{#{Enum.join([inspect(name) | arguments], ", ")}}"
end
