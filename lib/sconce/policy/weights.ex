defmodule Sconce.Policy.Weights do
  @moduledoc false
  # All weights of a policy as terms, and new values for some of them.

  import Sconce.Tensor, only: [is_tensor: 1]

  alias Sconce.{Error, Native, Options, Policy, Tensor}
  alias Sconce.Compress.Numbers
  alias Sconce.Native.Call

  @doc "The weights as a list of names and shapes, or as a map of their values."
  @spec all(Policy.t(), :shapes | :binaries | :nx) :: {:ok, list | map} | {:error, Error.t()}
  def all(%{ref: ref}, :shapes), do: shapes(ref)

  def all(%{ref: ref}, as) do
    if as == :nx, do: Tensor.nx!("option :as")

    with {:ok, shapes} <- shapes(ref) do
      Enum.reduce_while(shapes, {:ok, %{}}, fn {name, shape}, {:ok, all} ->
        case Native.policy_weight(ref, name) do
          {:ok, data} -> {:cont, {:ok, Map.put(all, name, value(data, shape, as))}}
          error -> {:halt, error}
        end
      end)
    end
  end

  defp shapes(ref) do
    with {:ok, weights} <- Native.policy_weights(ref),
         do: {:ok, for({name, dims} <- weights, do: {name, List.to_tuple(dims)})}
  end

  defp value(data, shape, :binaries), do: %{data: data, shape: shape, type: {:f, 32}}
  defp value(data, shape, :nx), do: Tensor.from_binary(data, {:f, 32}, shape)

  @doc "The handle of a copy of the policy with these values."
  @spec put(Policy.t(), %{term => term}) :: {:ok, reference} | {:error, Error.t()}
  def put(%{ref: ref}, weights) do
    with {:ok, shapes} <- shapes(ref),
         {:ok, packed} <- packed(Enum.sort(weights), Map.new(shapes), []),
         do: Call.run(&Native.policy_put_weights(ref, &1, packed))
  end

  defp packed([], _shapes, packed), do: {:ok, Enum.reverse(packed)}

  defp packed([{name, value} | rest], shapes, packed) do
    with {:ok, shape} <- shape(shapes, name),
         {:ok, data} <- data(value, name, shape),
         do: packed(rest, shapes, [{name, Tuple.to_list(shape), data} | packed])
  end

  defp shape(shapes, name) do
    case shapes do
      %{^name => shape} -> {:ok, shape}
      _none when is_binary(name) -> {:error, unknown(name, shapes)}
      _none -> Options.argument!("weights", name, "the name of a weight")
    end
  end

  defp unknown(name, shapes) do
    near = Options.nearest(name, Map.keys(shapes))
    what = "weight #{name}" <> if(near, do: " (did you mean #{near}?)", else: "")
    %Error{kind: :not_found, op: :put_weights, details: %{what: what}}
  end

  # A binary has no shape of its own.
  defp data(value, name, shape) when is_binary(value) do
    expected = 4 * Tuple.product(shape)

    if byte_size(value) == expected,
      do: {:ok, value},
      else: misfit(name, "#{expected} bytes", "#{byte_size(value)} bytes")
  end

  defp data(value, name, shape) when is_tensor(value) do
    with {:ok, tensor} <- Tensor.read(value, name, :put_weights, [:floats]),
         do: fit(tensor, name, shape)
  end

  defp data(value, name, shape) do
    with {:ok, numbers} <- Numbers.read(value, name, :put_weights), do: fit(numbers, name, shape)
  end

  defp fit(%{shape: shape, data: data}, _name, shape), do: {:ok, data}

  defp fit(%{shape: other}, name, shape),
    do: misfit(name, "the shape #{inspect(shape)}", inspect(other))

  defp misfit(name, expected, got),
    do: {:error, Tensor.misfit(name, expected, got, :put_weights)}
end
