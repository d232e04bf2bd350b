defmodule Sconce.Net.Layers do
  @moduledoc false
  # Reads layers as a user writes them, and returns them in the native form. A shape is `{axes, channels}` here: the
  # number of axes behind the channels, and the channels if they are known. The native side checks whole shapes.

  alias Sconce.Net.Catalogue
  alias Sconce.Options

  @most_depth 16
  @most_layers 1024

  @type shape :: {axes :: 0..2, channels :: pos_integer | nil}

  @doc "Reads a list of layers."
  @spec read!(term, shape | [{String.t(), shape}]) :: [map]
  def read!(layers, shape) do
    {layers, _shape} = list!(layers, shape, 0)
    layers |> count() |> few!()
    layers
  end

  defp few!(many) do
    many <= @most_layers ||
      raise ArgumentError, "layers: expected at most #{@most_layers}, got: #{many}"
  end

  defp list!(_layers, _shape, depth) when depth >= @most_depth,
    do: raise(ArgumentError, "layers: expected at most #{@most_depth} levels of layers in layers")

  defp list!(layers, shape, depth) when length(layers) >= 0 do
    layers |> length() |> few!()
    Enum.map_reduce(layers, shape, &layer!(&1, &2, depth))
  end

  defp list!(other, _shape, _depth), do: Options.argument!("layers", other, "a list of layers")

  defp count(layers) do
    layers
    |> Enum.map(fn
      %{layers: own} -> 1 + count(own)
      %{branches: branches} -> 1 + Enum.sum(Enum.map(branches, &count(layers_of(&1))))
      _leaf -> 1
    end)
    |> Enum.sum()
  end

  defp layers_of([name, layers]) when is_binary(name), do: layers
  defp layers_of(layers), do: layers

  defp layer!(layer, shape, depth) do
    {name, given} = named!(layer)
    {arguments, options} = Catalogue.layer(name)
    {own, rest} = Enum.split(given, length(arguments))
    length(own) == length(arguments) || misuse!(layer, name, arguments)
    opts = options!(rest, layer, name, arguments)

    own =
      for {{argument, schema}, value} <- Enum.zip(arguments, own),
          do: {argument, argument!(name, argument, value, schema)}

    one!(name, Map.new(own ++ validated!(name, opts, options)), shape, depth)
  end

  defp named!(name) when is_atom(name), do: named!(name, [])

  defp named!(layer) when is_tuple(layer) and tuple_size(layer) > 0,
    do: named!(elem(layer, 0), layer |> Tuple.to_list() |> tl())

  defp named!(other),
    do: Options.argument!("layer", other, "a name, or a tuple that begins with one")

  defp named!(name, given) do
    functions = Catalogue.functions()

    if name in functions and given == [] do
      {:activation, [name]}
    else
      Options.known!(name, Catalogue.names() ++ functions, "layer")
      name in functions && Options.argument!("layer", {name, given}, "#{inspect(name)} alone")
      {name, given}
    end
  end

  defp options!([], _layer, _name, _arguments), do: []

  defp options!([opts], layer, name, arguments),
    do: if(Keyword.keyword?(opts), do: opts, else: misuse!(layer, name, arguments))

  defp options!(_more, layer, name, arguments), do: misuse!(layer, name, arguments)

  defp misuse!(layer, name, arguments) do
    form = Enum.join([inspect(name) | Keyword.keys(arguments)] ++ ["options"], ", ")
    Options.argument!("layer", layer, "{#{form}}")
  end

  defp argument!(layer, name, value, schema) do
    case Options.fit(value, schema) do
      {:ok, value} ->
        value

      :error ->
        expected = Options.expected(value, schema)
        Options.argument!("#{name} of #{inspect(layer)}", value, expected)
    end
  end

  defp validated!(layer, opts, schema) do
    Options.validate!(opts, schema)
  rescue
    error in ArgumentError ->
      reraise ArgumentError, "#{inspect(layer)}: #{Exception.message(error)}", __STACKTRACE__
  end

  # One layer in the native form, and the shape of its output

  defp one!(name, _own, shapes, _depth) when is_list(shapes) and name != :inputs do
    raise ArgumentError,
          "the first layer of a net of several inputs is {:inputs, branches}, got: #{inspect(name)}"
  end

  defp one!(:conv, own, {axes, _channels}, _depth) do
    own = spatial(own, axes, [:kernel, :stride, :dilation]) |> padded!(:conv, axes)
    {Map.put(own, :kind, :conv), {axes, own.filters}}
  end

  defp one!(:conv_transpose, own, {axes, _channels}, _depth) do
    own = spatial(own, axes, [:kernel, :stride, :padding, :output_padding, :dilation])
    {Map.put(own, :kind, :conv_transpose), {axes, own.filters}}
  end

  defp one!(:depthwise, own, {_axes, channels} = shape, depth) do
    channels || raise ArgumentError, ":depthwise: the number of channels is not known here"
    own = Map.merge(own, %{filters: channels, groups: channels})
    one!(:conv, own, shape, depth)
  end

  defp one!(pool, own, {axes, _channels} = shape, _depth) when pool in [:max_pool, :mean_pool] do
    own = %{own | stride: own.stride || own.kernel}
    {own |> spatial(axes, [:kernel, :stride, :padding]) |> Map.put(:kind, pool), shape}
  end

  defp one!(:upsample, own, {axes, _channels} = shape, _depth),
    do: {own |> spatial(axes, [:factor]) |> Map.put(:kind, :upsample), shape}

  defp one!(:flatten, own, _shape, _depth), do: {Map.put(own, :kind, :flatten), {0, nil}}

  defp one!(name, own, {_axes, channels}, _depth) when name in [:global_mean, :global_max],
    do: {Map.put(own, :kind, name), {0, channels}}

  defp one!(:dense, own, _shape, _depth), do: {Map.put(own, :kind, :dense), {0, own.size}}

  defp one!(cell, own, _shape, _depth) when cell in [:gru, :lstm],
    do: {Map.put(own, :kind, cell), {if(own.sequence, do: 1, else: 0), own.size}}

  defp one!(:embed, own, _shape, _depth), do: {Map.put(own, :kind, :embed), {1, own.size}}

  defp one!(:residual, own, shape, depth) do
    {layers, _shape} = list!(own.layers, shape, depth + 1)
    {%{kind: :residual, layers: layers}, shape}
  end

  defp one!(:concat, %{branches: branches}, shape, depth) when length(branches) >= 0 do
    {branches, shapes} = branches |> Enum.map(&list!(&1, shape, depth + 1)) |> Enum.unzip()
    {%{kind: :concat, branches: branches}, joined(shapes, shape)}
  end

  # The shape is a list of named ones before the first layer of several inputs.
  defp one!(:inputs, %{branches: branches}, shapes, depth) when is_list(shapes) do
    Keyword.keyword?(branches) ||
      Options.argument!("branches of :inputs", branches, "a keyword list of layers")

    {branches, ends} =
      Enum.unzip(
        for {name, layers} <- branches do
          name = Atom.to_string(name)
          {layers, shape} = list!(layers, of!(shapes, name), depth + 1)
          {[name, layers], shape}
        end
      )

    {%{kind: :inputs, branches: branches}, joined(ends, {0, nil})}
  end

  defp one!(:inputs, _own, _shape, _depth),
    do: raise(ArgumentError, ":inputs is the first layer of a net with the option :inputs")

  defp one!(:concat, own, _shape, _depth),
    do: Options.argument!("branches of :concat", own.branches, "a list of lists of layers")

  defp one!(:batch_norm, own, shape, _depth) do
    own = %{own | epsilon: rounded(own.epsilon), momentum: rounded(own.momentum)}
    {Map.put(own, :kind, :batch_norm), shape}
  end

  defp one!(name, own, shape, _depth), do: {Map.put(own, :kind, name), shape}

  @doc "The shortest number of the same 32-bit float, which the native side keeps."
  @spec rounded(number) :: float
  def rounded(number) do
    <<value::float-32>> = single = <<number::float-32>>

    Enum.find_value(5..16, value, fn digits ->
      short = value |> :erlang.float_to_binary(scientific: digits) |> String.to_float()
      if <<short::float-32>> == single, do: short
    end)
  end

  defp of!(shapes, name) do
    case List.keyfind(shapes, name, 0) do
      {_name, shape} -> shape
      nil -> Options.known!(name, Enum.map(shapes, &elem(&1, 0)), "input")
    end
  end

  defp joined([{axes, _channels} | _rest] = shapes, _none) do
    channels = Enum.map(shapes, &elem(&1, 1))
    {axes, unless(nil in channels, do: Enum.sum(channels))}
  end

  defp joined([], none), do: none

  # Numbers become lists, one for each axis.
  defp spatial(own, axes, names),
    do: Enum.reduce(names, own, &Map.update!(&2, &1, fn n -> each(n, axes) end))

  defp each(number, axes) when is_integer(number), do: List.duplicate(number, max(axes, 1))
  defp each(list, _axes), do: list

  defp padded!(%{padding: :same} = own, name, _axes) do
    (Enum.all?(own.kernel, &(rem(&1, 2) == 1)) and Enum.all?(own.stride, &(&1 == 1))) ||
      raise ArgumentError, "#{inspect(name)}: padding :same needs an odd kernel and stride 1"

    length(own.kernel) == length(own.dilation) ||
      raise ArgumentError, "#{inspect(name)}: kernel and dilation have different lengths"

    %{own | padding: for({k, d} <- Enum.zip(own.kernel, own.dilation), do: div(k, 2) * d)}
  end

  defp padded!(own, _name, axes), do: spatial(own, axes, [:padding])
end
