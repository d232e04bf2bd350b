defmodule Sconce.Temporal do
  alias Sconce.Options

  @size [type: :pos_integer, max: 65_536]
  @rate [type: :float, min: 0.0, max: 0.99]
  @dropout [
    dropout: @rate ++ [default: 0.1, doc: "After each layer, in training only."],
    input_dropout: @rate ++ [default: 0.0, doc: "Whole features of a window, in training only."]
  ]
  @recurrent [
               hidden_size: @size ++ [default: 256, doc: "Width of the state and of the output."],
               num_layers: @size ++ [default: 2, doc: "Cells on top of each other."],
               layer_norm: [type: :boolean, default: true, doc: "LayerNorm after each layer."],
               input_norm: [
                 type: {:or, [:boolean, :auto]},
                 default: :auto,
                 doc: "LayerNorm on the input. `:auto`: on Melee frames, not on a plain vector."
               ]
             ] ++ @dropout

  @backbones [
    mlp: %{
      paper: "He et al. 2016 for the residual",
      formula: ["h = dropout(relu(norm(W x + b))) + skip"],
      state: "none",
      options:
        [
          hidden_sizes: [
            type: {:list, :pos_integer},
            default: [512, 512],
            doc: "Width of each layer."
          ],
          layer_norm: [type: :boolean, default: false, doc: "LayerNorm before each relu."],
          residual: [
            type: :boolean,
            default: false,
            doc: "Adds each layer's input to its output."
          ]
        ] ++ @dropout
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
      options: @recurrent
    },
    gru: %{
      paper: "Cho et al. 2014",
      formula: [
        "r, z = sigmoid(W x + U h + b)",
        "n = tanh(W_n x + b_n + r * (U_n h + b_hn))",
        "h = (1 - z) * n + z * h"
      ],
      state: "h of each layer, num_layers x hidden_size numbers",
      options: @recurrent
    }
  ]

  @moduledoc """
  How vectors become memory: the backbones of a `Sconce.Policy.Spec`.

  Each reads `[b, t, width]` and gives `[b, t, h]`, the trunk vector of every frame, and the state
  after the last. Read at once or frame by frame, a sequence gives the same numbers.

  #{for {name, backbone} <- @backbones do
    """
    ## `#{inspect(name)}`

    ```text
    #{Enum.join(backbone.formula, "\n")}
    ```

    #{backbone.paper}. State: #{backbone.state}.

    #{Options.docs(backbone.options)}

    """
  end}
  """

  @type backbone :: :mlp | :lstm | :gru

  @doc """
  The backbones there are.

      iex> Sconce.Temporal.backbones()
      [:mlp, :lstm, :gru]
  """
  @spec backbones() :: [backbone]
  def backbones, do: unquote(Keyword.keys(@backbones))

  @doc """
  The schema of a backbone's options, see `Sconce.Options`. Raises `ArgumentError` for an unknown one.

      iex> Sconce.Temporal.options(:gru)[:hidden_size][:default]
      256
      iex> Sconce.Temporal.options(:gro)
      ** (ArgumentError) unknown backbone :gro, did you mean :gru?
  """
  @spec options(backbone) :: Options.schema()
  def options(name) do
    Options.known!(name, backbones(), "backbone")
    @backbones[name].options
  end

  @doc """
  Prints the backbones as a table: formula, state, options with their defaults.
  """
  @spec print() :: :ok
  def print do
    for {name, backbone} <- @backbones do
      IO.puts("#{name} (#{backbone.paper})")
      Enum.each(backbone.formula, &IO.puts("  " <> &1))
      IO.puts("  state    #{backbone.state}")
      IO.puts("  options  " <> Enum.map_join(backbone.options, ", ", &default/1) <> "\n")
    end

    :ok
  end

  defp default({name, option}), do: "#{name} #{inspect(option[:default])}"
end
