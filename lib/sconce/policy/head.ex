defmodule Sconce.Policy.Head do
  @moduledoc false
  # Kinds of heads: their number of logits and labels, and their form on the native side. The table of the native
  # side has all kinds; a kind without code in this module is `{name, n}`.

  alias Sconce.Game.Declaration
  alias Sconce.{Native, Options}

  @type kind ::
          {:bernoulli, pos_integer}
          | {:categorical, pos_integer}
          | {:gaussian, pos_integer, low :: float, high :: float}
          | {:value, 1}

  @kinds [:bernoulli, :categorical, :gaussian]

  @doc "Returns the given kind with every field filled in. Raises `ArgumentError` if it is invalid."
  @spec kind!(term, term) :: kind
  def kind!(_name, {:bernoulli, n} = kind) when n in 1..65_536, do: kind
  def kind!(_name, {:categorical, n} = kind) when n in 2..65_536, do: kind
  def kind!(name, {:gaussian, n}), do: kind!(name, {:gaussian, n, -1, 1})

  def kind!(_name, {:gaussian, n, low, high})
      when n in 1..32_768 and is_number(low) and is_number(high) and low < high,
      do: {:gaussian, n, Declaration.single(low), Declaration.single(high)}

  def kind!(name, {kind, n} = given) when is_atom(kind) and kind not in [:value | @kinds] do
    case is_integer(n) && Native.head_sizes(given) do
      {:ok, _sizes} -> given
      _unknown -> wrong!(name, given)
    end
  end

  def kind!(name, given), do: wrong!(name, given)

  defp wrong!(name, given) do
    kind = is_tuple(given) and tuple_size(given) > 1 and elem(given, 0)
    if is_atom(kind) and kind, do: Options.known!(kind, @kinds, "kind of head")

    raise ArgumentError,
          "head #{inspect(name)}: expected 1..65536 bits, 2..65536 classes or " <>
            "{:gaussian, 1..32768, low, high}, got: #{inspect(given)}"
  end

  @doc "Whether the term has the form that `kind!/2` returns."
  @spec kind?(term) :: boolean
  def kind?({kind, n}) when is_atom(kind), do: is_integer(n)

  def kind?({:gaussian, n, low, high}),
    do: is_integer(n) and is_float(low) and is_float(high)

  def kind?(_other), do: false

  @doc "Number of logits."
  @spec logits(kind) :: pos_integer
  def logits({:gaussian, n, _low, _high}), do: 2 * n
  def logits({kind, n}) when kind in [:bernoulli, :categorical], do: n
  def logits(kind), do: kind |> sizes() |> elem(0)

  @doc "Number of labels."
  @spec labels(kind) :: pos_integer
  def labels({:bernoulli, n}), do: n
  def labels({:categorical, _n}), do: 1
  def labels({:gaussian, n, _low, _high}), do: n
  def labels(kind), do: kind |> sizes() |> elem(1)

  defp sizes(kind) do
    {:ok, sizes} = Native.head_sizes(kind)
    sizes
  end

  defp whole?({:gaussian, _n, _low, _high}), do: false
  defp whole?({kind, _n}) when kind in [:bernoulli, :categorical], do: true
  defp whole?(kind), do: kind |> sizes() |> elem(2)

  @doc "The type of the labels of these heads: 16-bit integers, or 32-bit floats if a head has other labels."
  @spec type([%{kind: kind}]) :: {:u, 16} | {:f, 32}
  def type(heads),
    do: if(Enum.all?(heads, &whole?(&1.kind)), do: {:u, 16}, else: {:f, 32})

  @doc "Splits off the choice of a head from labels that begin with that head's; returns the choice and the rest."
  @spec choice(kind, [number]) :: {number | [number], [number]}
  def choice({:bernoulli, n}, labels), do: Enum.split(labels, n)
  def choice({:categorical, _n}, [class | rest]), do: {class, rest}

  def choice({:gaussian, n, _low, _high}, labels) do
    {numbers, rest} = Enum.split(labels, n)
    {Enum.map(numbers, &(&1 * 1.0)), rest}
  end

  def choice(kind, labels) do
    case Enum.split(labels, labels(kind)) do
      {[label], rest} -> {label, rest}
      split -> split
    end
  end

  @doc "The labels of a choice. An invalid choice is returned unchanged."
  @spec labels_of(kind, term) :: [term]
  def labels_of({:gaussian, _n, _low, _high}, choice),
    do: choice |> List.wrap() |> Enum.map(&if(is_integer(&1), do: &1 * 1.0, else: &1))

  def labels_of(_kind, choice), do: List.wrap(choice)

  @spec to_native(kind) :: tuple
  def to_native({:gaussian, n, low, high}), do: {:gaussian, %{size: n, low: low, high: high}}
  def to_native(kind), do: kind

  @spec from_native(map) :: kind
  def from_native(%{gaussian: %{size: n, low: low, high: high}}),
    do: {:gaussian, n, Declaration.single(low), Declaration.single(high)}

  def from_native(%{} = kind), do: kind |> Map.to_list() |> hd()
end
