defmodule Sconce.Net.Spec do
  alias Sconce.Net.{Catalogue, Layers}
  alias Sconce.Options

  @most_inputs 64

  @moduledoc """
  A small network as data: inputs, and layers from the first to the last.

      iex> Sconce.Net.Spec.new(input: [3, 8, 8], layers: [{:conv, 4, 3}, :relu, :flatten, {:dense, 2}])
      #Sconce.Net.Spec<3x8x8 -> conv, activation, flatten, dense>

  ## Inputs

  | option | input |
  |---|---|
  | `input: [3, 96, 96]` | an image: channels, height, width |
  | `input: [4, 250]` | a signal: channels, time |
  | `input: [12]` | a vector |
  | `input: {:tokens, 50, vocabulary: 5000}` | 50 tokens, numbers from 0 to 4999 |
  | `inputs: [ecg: [1, 250], ppg: [1, 100]]` | several; the first layer is `{:inputs, ecg: layers, ppg: layers}` |

  ## Layers

  A layer is a name or a tuple: the name, its arguments, and its options if it has some. A kernel of one number has this
  size along each axis.

  #{Catalogue.table()}
  Defaults are those of PyTorch, and so are weights: their names (`layers.0.weight`), layouts and initial numbers.
  `:residual`, `:concat` and `:inputs` take lists of layers, at most 16 in each other.

  ## Options of layers

  #{Catalogue.options()}
  """

  @enforce_keys [:inputs, :layers]
  defstruct @enforce_keys

  @typedoc "An input: its name, its shape, and the number of tokens if it has tokens."
  @type input :: %{name: String.t(), shape: [pos_integer], vocabulary: pos_integer | nil}

  @typedoc "A checked declaration. Layers are maps, each with its `:kind`, in which all options have a value."
  @type t :: %__MODULE__{inputs: [input], layers: [map]}

  @doc """
  Returns a declaration with every option filled in. Raises `ArgumentError` if a name or a value is wrong.

  Whether layers fit each other is checked by `Sconce.Net.outline/1`, and by all functions that make a net.

      iex> Sconce.Net.Spec.new(input: [3, 8, 8], layers: [{:conv, 4, 3, strid: 2}])
      ** (ArgumentError) :conv: unknown option :strid, did you mean :stride?

      iex> Sconce.Net.Spec.new(input: [3, 8, 8], layers: [{:cnv, 4, 3}])
      ** (ArgumentError) unknown layer :cnv, did you mean :conv?
  """
  @spec new(keyword | t) :: t
  def new(%__MODULE__{inputs: inputs, layers: layers} = spec) do
    whole? = length(inputs) > 0 and Enum.all?(inputs, &input?/1) and length(layers) >= 0
    whole? || Options.argument!("spec", spec, "a declaration of Sconce.Net.Spec.new/1")
    spec
  rescue
    # A field is no list.
    ArgumentError -> Options.argument!("spec", spec, "a declaration of Sconce.Net.Spec.new/1")
  end

  def new(opts) do
    Options.keyword!(opts)
    for {name, _value} <- opts, do: Options.known!(name, [:input, :inputs, :layers])
    inputs = inputs!(opts)

    layers =
      Keyword.get(opts, :layers) ||
        raise ArgumentError, "option :layers is required: a list of layers"

    %__MODULE__{inputs: inputs, layers: Layers.read!(layers, shapes(inputs, opts))}
  end

  @doc """
  Returns a network for images, `[channels, height, width]`, whose output has `size` numbers: convolutions of 8 x 8 pixels with
  a stride of 4 and of 4 x 4 with a stride of 2, as Mnih et al. (2015) use them, with half as many filters, and a dense layer.
  Images of less than 20 pixels a side get 3 x 3 convolutions. It is the `embedding: {:net, spec}` that `Sconce.PPO` takes for an
  environment that shows images.

      iex> Sconce.Net.Spec.image([2, 64, 64], 64)
      #Sconce.Net.Spec<2x64x64 -> conv, conv, flatten, dense>
  """
  @spec image([pos_integer], pos_integer) :: t
  def image([_channels, height, width] = shape, size) when is_integer(size) do
    convolutions =
      if min(height, width) < 20,
        do: [
          {:conv, 16, 3, padding: 1, activation: :relu},
          {:conv, 16, 3, padding: 1, activation: :relu}
        ],
        else: [
          {:conv, 16, 8, stride: 4, activation: :relu},
          {:conv, 32, 4, stride: 2, activation: :relu}
        ]

    new(input: shape, layers: convolutions ++ [:flatten, {:dense, size, activation: :relu}])
  end

  def image(shape, _size),
    do: Options.argument!("shape", shape, "channels, height and width, and a size")

  @doc false
  # Numbers of all inputs together.
  @spec numbers(t) :: pos_integer
  def numbers(%__MODULE__{inputs: inputs}),
    do: inputs |> Enum.map(&Enum.product(&1.shape)) |> Enum.sum()

  defp input?(%{name: name, shape: shape, vocabulary: _tokens}),
    do: is_binary(name) and shape?(shape)

  defp input?(_other), do: false

  defp shape?(shape), do: is_list(shape) and Enum.all?(shape, &is_integer/1)

  defp inputs!(opts) do
    case {Keyword.fetch(opts, :input), Keyword.fetch(opts, :inputs)} do
      {{:ok, input}, :error} ->
        [input!("input", input)]

      {:error, {:ok, [_ | _] = inputs}} when length(inputs) <= @most_inputs ->
        named!(inputs)

      {:error, {:ok, other}} ->
        Options.argument!("option :inputs", other, "1 to #{@most_inputs} named shapes")

      {{:ok, _input}, {:ok, _inputs}} ->
        raise ArgumentError, "options :input and :inputs exclude each other"

      {:error, :error} ->
        raise ArgumentError, "option :input is required: a shape such as [3, 96, 96]"
    end
  end

  defp named!(inputs) do
    Keyword.keyword?(inputs) ||
      Options.argument!("option :inputs", inputs, "a keyword list of shapes")

    names = Keyword.keys(inputs)
    names == Enum.uniq(names) || Options.argument!("option :inputs", names, "each name once")
    for {name, input} <- inputs, do: input!(Atom.to_string(name), input)
  end

  defp input!(name, {:tokens, many, opts}) do
    schema = [vocabulary: [type: :pos_integer, required: true, doc: "Tokens."]]
    [vocabulary: vocabulary] = Options.validate!(opts, schema)
    %{name: name, shape: sizes!(name, [many]), vocabulary: vocabulary}
  end

  defp input!(name, shape), do: %{name: name, shape: sizes!(name, shape), vocabulary: nil}

  defp sizes!(name, shape) do
    case Options.fit(shape, type: {:list, :pos_integer}) do
      {:ok, [_ | _] = sizes} when length(sizes) <= 3 ->
        sizes

      _unfit ->
        Options.argument!("shape of #{name}", shape, "one to three positive integers")
    end
  end

  defp shapes([input], opts), do: if(opts[:inputs], do: [named(input)], else: shape(input))
  defp shapes(inputs, _opts), do: Enum.map(inputs, &named/1)

  defp named(input), do: {input.name, shape(input)}

  defp shape(%{shape: [channels | axes]}), do: {length(axes), channels}

  @doc false
  @spec to_native(t) :: map
  def to_native(%__MODULE__{inputs: inputs, layers: layers}),
    do: %{inputs: inputs, layers: layers}

  @atoms [:none | Catalogue.functions()] ++ Catalogue.names()
  @texts Map.new(@atoms, &{Atom.to_string(&1), &1})

  @doc false
  # The native side gives kinds and functions as text.
  @spec from_native(map) :: t
  def from_native(%{inputs: inputs, layers: layers}) do
    inputs = for input <- inputs, do: Map.put_new(input, :vocabulary, nil)
    %__MODULE__{inputs: inputs, layers: Enum.map(layers, &layer/1)}
  end

  @doc false
  @spec kind(String.t()) :: atom
  def kind(text), do: Map.fetch!(@texts, text)

  defp layer(%{} = own), do: Map.new(own, &field/1)

  defp field({name, text}) when name in [:kind, :function, :activation],
    do: {name, kind(text)}

  defp field({:epsilon = name, number}), do: {name, Layers.rounded(number)}
  defp field({:momentum = name, number}), do: {name, Layers.rounded(number)}
  defp field({:layers, layers}), do: {:layers, Enum.map(layers, &layer/1)}
  defp field({:branches, branches}), do: {:branches, Enum.map(branches, &branch/1)}
  defp field(other), do: other

  defp branch([name, layers]) when is_binary(name), do: [name, Enum.map(layers, &layer/1)]
  defp branch(layers), do: Enum.map(layers, &layer/1)

  @doc false
  @spec text([pos_integer]) :: String.t()
  def text(shape), do: Enum.join(shape, "x")

  @doc false
  # The shapes of the inputs.
  @spec shapes(t) :: String.t()
  def shapes(%__MODULE__{inputs: inputs}) do
    Enum.map_join(inputs, " + ", fn
      %{vocabulary: nil, shape: shape} -> text(shape)
      %{vocabulary: tokens, shape: shape} -> "#{text(shape)} tokens of #{tokens}"
    end)
  end

  @doc false
  # The kinds of the first layers.
  @spec summary(t) :: String.t()
  def summary(%__MODULE__{layers: layers} = spec) do
    shapes = shapes(spec)
    {first, rest} = layers |> Enum.map(&Map.get(&1, :kind)) |> Enum.split(6)
    more = if rest == [], do: "", else: ", #{length(rest)} more"
    "#{shapes} -> #{Enum.map_join(first, ", ", &to_string/1)}#{more}"
  end

  defimpl Inspect do
    def inspect(spec, _opts) do
      "#Sconce.Net.Spec<#{Sconce.Net.Spec.summary(spec)}>"
    rescue
      _built_by_hand -> "#Sconce.Net.Spec<>"
    end
  end
end
