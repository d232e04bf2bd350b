defmodule Sconce.Compat.ExPhil.Answer do
  @moduledoc false
  # Actions in the shapes of ExPhil's agent.

  alias Sconce.{Action, Tensor}

  @silent %{overall: 0.0, buttons: 0.0, main: 0.0, c: 0.0, shoulder: 0.0}

  @doc "The confidence of a frame that has no decision of its own."
  def silent, do: @silent

  @doc """
  The choices of an action and its logits. With Nx they are tensors, `{1, 8}` and `{1}`, else lists and integers.
  """
  @spec choices(Action.t()) :: map
  def choices(%Action{choices: choices, logits: logits}) do
    logits = Map.delete(logits, :value)

    if Tensor.nx?() do
      choices
      |> Map.new(fn {name, choice} -> {name, tensor(choice)} end)
      |> Map.put(:logits, Map.new(logits, fn {name, values} -> {name, floats(values)} end))
    else
      Map.put(choices, :logits, logits)
    end
  end

  defp tensor(bits) when is_list(bits),
    do: Tensor.from_binary(:binary.list_to_bin(bits), {:u, 8}, {1, length(bits)})

  defp tensor(class), do: Tensor.from_binary(<<class::32-little>>, {:s, 32}, {1})

  defp floats(values) do
    data = for value <- values, into: <<>>, do: <<value::float-32-little>>
    Tensor.from_binary(data, {:f, 32}, {1, length(values)})
  end
end
