defmodule Sconce.GPU.Params do
  @moduledoc false
  # Counts the weights of a policy, or of nested tensors.

  alias Sconce.{Options, Policy}

  @doc "Returns the number of weights."
  @spec count(term) :: non_neg_integer
  def count(%Policy{num_weights: count}), do: count

  # Nx and Axon are optional libraries of the host, so their structs are matched by name.
  def count(%{__struct__: Nx.Tensor, shape: shape}) when is_tuple(shape), do: elements(shape)
  def count(%{__struct__: Axon.ModelState, data: data}), do: count(data)
  def count(%{data: _, type: _, shape: shape}) when is_tuple(shape), do: elements(shape)

  def count(params) when is_map(params) and not is_struct(params),
    do: params |> Map.values() |> count()

  def count(params) when length(params) >= 0, do: params |> Enum.map(&count/1) |> Enum.sum()
  def count(params) when is_tuple(params), do: params |> Tuple.to_list() |> count()

  def count(other), do: Options.argument!("params", other, "a policy, or tensors in maps")

  defp elements(shape) do
    dims = Tuple.to_list(shape)
    whole? = Enum.all?(dims, &(is_integer(&1) and &1 >= 0))
    if whole?, do: Enum.product(dims), else: Options.argument!("shape", shape, "a tuple of sizes")
  end
end
