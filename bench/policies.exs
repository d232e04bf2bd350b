defmodule Policies do
  @moduledoc false
  # The policies that peers also serve, with random weights.

  @packed [embedding: {:melee, layout: :packed}, head_hidden_size: 0]
  @gru [backbone: :gru, hidden_size: 256, num_layers: 2, layer_norm: false, input_norm: false]
  @all [
    mlp: [backbone: :mlp, hidden_sizes: [512, 512], layer_norm: true] ++ @packed,
    gru: @gru ++ @packed
  ]

  def names, do: Keyword.keys(@all)

  def init!(name, opts \\ [seed: 1]) do
    {:ok, policy} = Sconce.Policy.init(Keyword.fetch!(@all, name), opts)
    policy
  end
end
