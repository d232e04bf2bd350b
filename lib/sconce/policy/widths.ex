defmodule Sconce.Policy.Widths do
  @moduledoc false
  # Warns of widths that are slow on the hardware. Widths are never changed: a policy has the widths of its Spec.

  require Logger

  alias Sconce.Policy.Spec

  # Floats in a vector register, and in a row of a GPU's matrix unit at half precision.
  @multiple 8
  @names [:hidden_size, :head_dim, :state_size]

  @doc "Warns of widths that are not a multiple of 8, once for each width in the life of this VM."
  @spec warn(Spec.t()) :: :ok
  def warn(spec), do: spec |> odd() |> Enum.each(&warn_once/1)

  @doc """
  Returns the widths that are not a multiple of 8, with their options.

      iex> Sconce.Policy.Widths.odd(Sconce.Policy.Spec.new(hidden_size: 100, head_hidden_size: 60))
      [hidden_size: 100, head_hidden_size: 60]
  """
  @spec odd(Spec.t()) :: [{atom, pos_integer}]
  def odd(%Spec{backbone: {_name, options}} = spec) do
    layers = for size <- Keyword.get(options, :hidden_sizes, []), do: {:hidden_sizes, size}
    widths = layers ++ Keyword.take(options, @names) ++ [head(spec)]
    for {_name, size} = width <- Enum.uniq(widths), rem(size, @multiple) != 0, do: width
  end

  # The hidden size of the widest head; the shoulder head has half that size.
  defp head(%Spec{heads_kind: :independent, heads: heads}),
    do: {:head_hidden_size, heads |> Enum.map(& &1.hidden_size) |> Enum.max()}

  defp head(%Spec{stream_size: size}), do: {:stream_size, size}

  # If two processes get here at the same time, one of them warns.
  defp warn_once(width) do
    key = {__MODULE__, width}

    :global.trans(
      {key, self()},
      fn ->
        unless :persistent_term.get(key, false) do
          :persistent_term.put(key, true)
          say(width)
        end
      end,
      [node()]
    )
  end

  # Measured for training steps of `:mlp` and `:gru`: a width of 100 takes 1.05 times as long as 104, and 257 takes
  # 1.07 times as long as 264.
  defp say({name, size}) do
    next = (div(size, @multiple) + 1) * @multiple

    Logger.warning(
      "#{name} #{size} is not a multiple of #{@multiple} and costs as much as #{next}; the width is not changed"
    )
  end
end
