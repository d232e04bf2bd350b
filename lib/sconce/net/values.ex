defmodule Sconce.Net.Values do
  @moduledoc false
  # Inputs, outputs and weights of `Sconce.Net` as binaries of 32-bit floats, and back.

  alias Sconce.Compress.Numbers
  alias Sconce.{Error, Options}
  alias Sconce.Net.Spec

  @type form :: Numbers.form() | :binary

  @doc "Reads the inputs of a run in the order of their declaration."
  @spec read(Spec.t(), term) :: {:ok, [binary], form} | {:error, Error.t()}
  def read(spec, given), do: each(spec, given, &single/3)

  @doc "Reads inputs of several examples: each has a first axis more than its declaration."
  @spec batch(Spec.t(), term, atom) :: {:ok, [binary]} | {:error, Error.t()}
  def batch(spec, given, op) do
    with {:ok, data, _form} <- each(spec, given, &several(&1, &2, &3, op)), do: {:ok, data}
  end

  defp each(%Spec{inputs: [%{name: "input"} = only]} = spec, [{:input, tensor}], one),
    do: each(spec, %{only.name => tensor}, one)

  defp each(%Spec{inputs: [%{name: "input"} = input]}, named, one)
       when is_map_key(named, "input") or is_map_key(named, :input) do
    %{"input" => tensor} = texts(named)
    with {:ok, data, form} <- one.(input, tensor, "input input"), do: {:ok, [data], form}
  end

  defp each(%Spec{inputs: [%{name: "input"} = input]}, tensor, one) do
    with {:ok, data, form} <- one.(input, tensor, "input"), do: {:ok, [data], form}
  end

  defp each(%Spec{inputs: inputs}, given, one) do
    named = named!(given)
    names = Enum.map(inputs, & &1.name)
    for {name, _tensor} <- named, do: Options.known!(name, names, "input")

    Enum.reduce_while(inputs, {:ok, [], nil}, fn input, {:ok, done, form} ->
      case of_name(input, named, one) do
        {:ok, data, own} -> {:cont, {:ok, done ++ [data], form || own}}
        error -> {:halt, error}
      end
    end)
  end

  defp of_name(%{name: name} = input, named, one) do
    case named do
      %{^name => tensor} -> one.(input, tensor, "input #{name}")
      _missing -> raise ArgumentError, "input #{name} is missing"
    end
  end

  defp single(_input, data, _what) when is_binary(data), do: {:ok, data, :binary}

  defp single(%{shape: expected}, tensor, what) do
    with {:ok, %{shape: shape, data: data, form: form}} <- Numbers.read(tensor, what, :run) do
      if Tuple.to_list(shape) in [expected, [1 | expected]],
        do: {:ok, data, form},
        else: misfit(what, expected, shape)
    end
  end

  defp misfit(what, expected, got) do
    expected = "the shape #{inspect(List.to_tuple(expected))}"
    Numbers.misfit(what, expected, inspect(got), :run)
  end

  defp several(%{shape: expected}, tensor, what, op) do
    with {:ok, data} <- rows(tensor, {:f, 32}, [expected], what, op), do: {:ok, data, :binary}
  end

  @doc """
  Reads a tensor of several examples as a binary. One of `shapes` is the shape of an example. A binary has any shape.
  """
  @spec rows(term, {atom, pos_integer}, [[pos_integer]], String.t(), atom) ::
          {:ok, binary} | {:error, Error.t()}
  def rows(data, _type, _shapes, _what, _op) when is_binary(data), do: {:ok, data}

  def rows(tensor, type, [expected | _] = shapes, what, op) do
    with {:ok, %{shape: shape, data: data}} <- Numbers.read(tensor, type, what, op) do
      if shape != {} and tl(Tuple.to_list(shape)) in shapes,
        do: {:ok, data},
        else: Numbers.misfit(what, "the shape #{batch_shape(expected)}", inspect(shape), op)
    end
  end

  defp batch_shape(shape), do: "{#{Enum.join(["n" | shape], ", ")}}"

  defp named!(given) when is_map(given) and not is_struct(given), do: texts(given)

  defp named!(given) do
    if Keyword.keyword?(given) and given != [],
      do: texts(given),
      else: Options.argument!("inputs", given, "a map of a tensor for each input")
  end

  defp texts(named), do: Map.new(named, fn {name, tensor} -> {text(name), tensor} end)

  defp text(name) when is_atom(name), do: Atom.to_string(name)
  defp text(name) when is_binary(name), do: name
  defp text(other), do: Options.argument!("name of an input", other, "an atom or a string")

  @doc "A tensor of 32-bit floats in this form."
  @spec write(binary, [non_neg_integer], form) :: term
  def write(data, _shape, :binary), do: data
  def write(data, shape, form), do: Numbers.write(data, {:f, 32}, List.to_tuple(shape), form)

  @doc "Reads weights by name, for the native side."
  @spec weights(term) :: {:ok, [{String.t(), [non_neg_integer], binary}]} | {:error, Error.t()}
  def weights(weights) when is_map(weights) and not is_struct(weights) do
    Enum.reduce_while(weights, {:ok, []}, fn {name, tensor}, {:ok, done} ->
      valid? = is_binary(name) and String.valid?(name)
      valid? || Options.argument!("name of a weight", name, "a string")

      case Numbers.read(tensor, name, :from_weights) do
        {:ok, %{shape: shape, data: data}} ->
          {:cont, {:ok, [{name, Tuple.to_list(shape), data} | done]}}

        error ->
          {:halt, error}
      end
    end)
  end

  def weights(other), do: Options.argument!("weights", other, "a map of names and tensors")
end
