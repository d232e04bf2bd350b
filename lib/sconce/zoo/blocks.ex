defmodule Sconce.Zoo.Blocks do
  @moduledoc false
  # Groups of layers that the networks of the zoo share, each a list.

  @doc "A convolution that keeps the shape, batch norm and ReLU. With a stride it divides the axes."
  def conv(filters, kernel, opts \\ []) do
    opts = Keyword.merge([padding: div(kernel, 2), bias: false], opts)
    [{:conv, filters, kernel, opts}, {:batch_norm, activation: :relu}]
  end

  @doc "A depthwise convolution of 3x3 and one of 1x1, each with batch norm and ReLU."
  def separable(filters, opts \\ []) do
    [
      {:depthwise, 3, Keyword.merge([padding: 1, bias: false], opts)},
      {:batch_norm, activation: :relu},
      {:conv, filters, 1, bias: false},
      {:batch_norm, activation: :relu}
    ]
  end

  @doc "Residual convolutions with dilations 1, 2, 4 and 8."
  def dilated(filters) do
    for dilation <- [1, 2, 4, 8] do
      options = [dilation: dilation, padding: :same, bias: false]
      {:residual, [{:conv, filters, 3, options}, {:batch_norm, activation: :relu}]}
    end
  end

  @doc "The vectors of tokens."
  def embed, do: [{:embed, 32}]
end
