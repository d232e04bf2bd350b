defmodule Sconce.Game.Declaration do
  @moduledoc false
  # Makes a declaration from options, and converts declarations to their native form and back.

  alias Sconce.{Error, Game, Native, Options}
  alias Sconce.Game.Catalogue
  alias Sconce.Policy.{Head, Spec}

  @width 16
  @steps 17
  # The largest number that a 32-bit float holds.
  @most 3.4028234e38

  @doc "Returns the options of `use Sconce.Game`, with a name derived from the module."
  def named(opts, module) do
    own = module |> Module.split() |> List.last() |> Macro.underscore() |> String.to_atom()
    Keyword.put_new(opts, :name, own)
  end

  def new!(opts) do
    opts = Options.validate!(opts, Catalogue.game())
    fields = for {name, field} <- opts[:fields], do: field!(name, field)

    game = %Game{
      name: Spec.text(opts[:name]),
      version: opts[:version],
      fields: for({field, _width} <- fields, do: field),
      tables: tables!(fields),
      input: for({name, part} <- opts[:input], do: part!(name, part))
    }

    native = to_native(game)

    # Only the native side checks for contradictions. Converting back normalises the declaration.
    case Native.game_check(native) do
      {:ok, _columns} -> from_native(native)
      {:error, %Error{} = error} -> raise ArgumentError, Exception.message(error)
    end
  end

  # Fields

  defp field!(name, opts) when is_list(opts) do
    opts = validate!("field #{name}", opts, Catalogue.field())
    type = type!("field #{name}", opts[:type], &field_type/1)

    field = %{
      name: name,
      type: type,
      scale: scale!(name, type, opts[:scale], opts[:clamp]),
      mirror: mirror!("field #{name}", opts[:mirror]),
      table: table(name, type, opts[:table]),
      default: opts[:default],
      doc: opts[:doc]
    }

    {field, opts[:width]}
  end

  defp field!(name, type), do: field!(name, type: type)

  defp validate!(what, opts, schema) do
    Options.validate!(opts, schema)
  rescue
    error in ArgumentError ->
      reraise ArgumentError, [message: "#{what}: #{error.message}"], __STACKTRACE__
  end

  defp type!(what, given, read) do
    read.(given) ||
      raise ArgumentError, "#{what}: no type #{inspect(given)}, see Sconce.Game"
  end

  defp field_type(:number), do: :number
  defp field_type(:flag), do: :flag

  defp field_type({:range, min, max}) when is_number(min) and is_number(max),
    do: {:range, single(min), single(max)}

  defp field_type({kind, n}) when kind in [:id, :one_hot, :vector] and n in 1..65_536,
    do: {kind, n}

  defp field_type(_other), do: nil

  defp scale!(_name, type, nil, nil), do: default_scale(type)

  defp scale!(_name, type, by, clamp) when type == :number or elem(type, 0) == :vector do
    {min, max} = clamp || {-10.0, 10.0}
    {:over, single(by || 1.0), single(min), single(max)}
  end

  defp scale!(name, _type, _by, _clamp),
    do: raise(ArgumentError, "field #{name}: only numbers and vectors have a scale")

  defp default_scale({:range, min, max}), do: {:between, min, max}
  defp default_scale(_type), do: :as_is

  defp table(name, {:id, _n}, nil), do: name
  defp table(_name, {:id, _n}, false), do: nil
  defp table(_name, _type, table), do: table

  # The largest id field that names a table determines the table's number of rows.
  defp tables!(fields) do
    named = for {%{table: table, type: {:id, n}}, width} <- fields, table, do: {table, n, width}

    for table <- named |> Enum.map(&elem(&1, 0)) |> Enum.uniq() do
      sizes = for {^table, n, _width} <- named, do: n
      widths = for {^table, _n, width} <- named, width, uniq: true, do: width

      match?([_, _ | _], widths) &&
        raise ArgumentError, "table #{table}: two widths, #{inspect(widths)}"

      %{name: table, ids: Enum.max(sizes), width: List.first(widths) || @width}
    end
  end

  # Parts

  defp part!(name, opts) when is_list(opts) do
    opts = validate!("input #{name}", opts, Catalogue.part())
    type = type!("input #{name}", opts[:type], &part_type/1)

    %{
      name: name,
      type: type,
      steps: steps!(name, type, opts[:steps]),
      mirror: mirror!("input #{name}", opts[:mirror]),
      rest: opts[:rest],
      doc: opts[:doc]
    }
  end

  defp part!(name, type), do: part!(name, type: type)

  defp part_type({:axis, min, max}) when is_number(min) and is_number(max),
    do: {:axis, single(min), single(max)}

  defp part_type({:continuous, min, max}), do: part_type({:continuous, 1, min, max})

  defp part_type({:continuous, n, min, max})
       when n in 1..1024 and is_number(min) and is_number(max),
       do: {:continuous, n, single(min), single(max)}

  defp part_type({:choice, n}) when n in 2..65_535, do: {:choice, n}

  defp part_type({:flags, [_ | _] = names}),
    do: if(Enum.all?(names, &(is_atom(&1) or is_binary(&1))), do: {:flags, names})

  defp part_type(_other), do: nil

  defp steps!(_name, {:axis, _min, _max}, steps), do: steps || @steps
  defp steps!(_name, _type, nil), do: nil

  defp steps!(name, _type, _steps),
    do: raise(ArgumentError, "input #{name}: only an axis has steps")

  defp mirror!(_what, mirror) when mirror in [:keep, :negate, :flip], do: mirror
  defp mirror!(_what, {:swap, name}), do: {:swap, name}

  defp mirror!(what, pairs) do
    if is_list(pairs) and Enum.all?(pairs, &match?({_, _}, &1)),
      do: {:pairs, pairs},
      else: raise(ArgumentError, "#{what}: no mirror #{inspect(pairs)}, see Sconce.Game")
  end

  # Conversion to the native form

  @doc "Returns whether a struct has all fields of a declaration; a struct made by hand may lack some."
  def whole?(game) do
    is_map(to_native(game))
  rescue
    _error -> false
  end

  @doc "Converts a declaration to its native form."
  def to_native(%Game{} = game) do
    %{
      name: game.name,
      version: game.version,
      fields: Enum.map(game.fields, &native_field/1),
      tables:
        for(
          t <- game.tables,
          do: %{name: Spec.text(t.name), ids: %{below: t.ids}, width: t.width}
        ),
      input: Enum.map(game.input, &native_part/1)
    }
  end

  defp native_field(field) do
    %{
      name: Spec.text(field.name),
      meaning: field.doc,
      kind: native_kind(field.type),
      scale: native_scale(field.scale),
      mirror: native_mirror(field),
      table: field.table && Spec.text(field.table),
      default: number(field.default)
    }
  end

  defp native_kind({:range, min, max}), do: %{range: %{min: min, max: max}}
  defp native_kind({kind, n}), do: %{kind => n}
  defp native_kind(kind), do: kind

  defp native_scale({:over, by, min, max}), do: %{over: %{by: by, min: min, max: max}}
  defp native_scale({:between, min, max}), do: %{between: %{min: min, max: max}}
  defp native_scale(scale), do: scale

  defp native_part(part) do
    %{
      name: Spec.text(part.name),
      meaning: part.doc,
      kind: native_part_kind(part),
      mirror: native_mirror(part),
      scale: part.type |> range() |> default_scale() |> native_scale(),
      rest: number(part.rest)
    }
  end

  defp range({:axis, min, max}), do: {:range, min, max}
  defp range({:continuous, _n, min, max}), do: {:range, min, max}
  defp range(other), do: other

  defp native_part_kind(%{type: {:flags, names}}), do: %{flags: Enum.map(names, &Spec.text/1)}

  defp native_part_kind(%{type: {:axis, min, max}, steps: steps}),
    do: %{axis: %{min: min, max: max, classes: steps}}

  defp native_part_kind(%{type: {:continuous, n, min, max}}),
    do: %{continuous: %{size: n, min: min, max: max}}

  defp native_part_kind(%{type: {:choice, n}}), do: %{choice: n}

  defp native_mirror(%{mirror: {:swap, name}}), do: %{swap: Spec.text(name)}

  defp native_mirror(%{mirror: {:pairs, pairs}, type: {kind, of}} = field) do
    names = if kind == :flags, do: Enum.map(of, &Spec.text/1), else: Enum.to_list(0..(of - 1))

    swapped =
      for {a, b} <- pairs, {from, to} <- [{a, b}, {b, a}], into: %{}, do: {key(from), key(to)}

    for name <- Map.keys(swapped), name not in names do
      raise ArgumentError, "mirror of #{field.name}: it has no #{inspect(name)}"
    end

    %{
      permute:
        for(name <- names, do: Enum.find_index(names, &(&1 == Map.get(swapped, name, name))))
    }
  end

  defp native_mirror(%{mirror: {:pairs, _pairs}} = field),
    do: raise(ArgumentError, "#{field.name}: only ids, choices and flags are swapped in pairs")

  defp native_mirror(%{mirror: mirror}), do: mirror

  defp key(name) when is_integer(name), do: name
  defp key(name), do: Spec.text(name)

  defp number(nil), do: nil
  defp number(true), do: 1.0
  defp number(false), do: 0.0
  defp number(value) when is_number(value), do: value * 1.0

  defp number(other),
    do: raise(ArgumentError, "expected a number or a boolean, got: #{inspect(other)}")

  # Conversion from the native form

  @doc "Converts the native form of a checkpoint or a corpus to a declaration."
  def from_native(%{name: name, version: version, fields: fields, tables: tables, input: input}) do
    %Game{
      name: name,
      version: version,
      fields: Enum.map(fields, &field/1),
      tables:
        for(
          %{name: name, ids: %{below: n}, width: width} <- tables,
          do: %{name: Spec.local(name), ids: n, width: width}
        ),
      input: Enum.map(input, &part/1)
    }
  end

  defp field(field) do
    type = kind(field.kind)

    %{
      name: Spec.local(field.name),
      type: type,
      scale: scale(field.scale),
      mirror: mirror(field.mirror, type),
      table: field.table && Spec.local(field.table),
      default: value(type, field.default),
      doc: field.meaning
    }
  end

  defp part(part) do
    {type, steps} = part_kind(part.kind)

    %{
      name: Spec.local(part.name),
      type: type,
      steps: steps,
      mirror: mirror(part.mirror, type),
      rest: value(type, part.rest),
      doc: part.meaning
    }
  end

  defp kind(kind) when is_atom(kind), do: kind
  defp kind(kind) when is_binary(kind), do: String.to_existing_atom(kind)
  defp kind(%{range: %{min: min, max: max}}), do: {:range, single(min), single(max)}
  defp kind(%{} = kind), do: kind |> Map.to_list() |> hd()

  defp part_kind(%{axis: %{min: min, max: max, classes: steps}}),
    do: {{:axis, single(min), single(max)}, steps}

  defp part_kind(%{continuous: %{size: n, min: min, max: max}}),
    do: {{:continuous, n, single(min), single(max)}, nil}

  defp part_kind(%{flags: names}), do: {{:flags, Enum.map(names, &Spec.local/1)}, nil}
  defp part_kind(%{} = kind), do: {kind |> Map.to_list() |> hd(), nil}

  defp scale(scale) when is_atom(scale), do: scale
  defp scale(scale) when is_binary(scale), do: String.to_existing_atom(scale)

  defp scale(%{over: %{by: by, min: min, max: max}}),
    do: {:over, single(by), single(min), single(max)}

  defp scale(%{between: %{min: min, max: max}}), do: {:between, single(min), single(max)}

  defp mirror(mirror, _type) when is_atom(mirror), do: mirror
  defp mirror(mirror, _type) when is_binary(mirror), do: String.to_existing_atom(mirror)
  defp mirror(%{swap: name}, _type), do: {:swap, Spec.local(name)}

  defp mirror(%{permute: to}, type) do
    name = fn i ->
      case type do
        {:flags, names} -> Enum.at(names, i)
        _ids -> i
      end
    end

    {:pairs, for({to, from} <- Enum.with_index(to), from < to, do: {name.(from), name.(to)})}
  end

  defp value(_type, nil), do: nil
  defp value(:flag, value), do: value != 0
  defp value({:flags, _names}, value), do: value != 0
  defp value({kind, _n}, value) when kind in [:id, :one_hot, :choice], do: trunc(value)
  defp value(_type, value), do: single(value)

  @doc "Returns the shortest decimal number with the same value in 32 bits."
  def single(value) when is_number(value) and abs(value) <= @most do
    <<exact::float-32>> = <<value * 1.0::float-32>>

    Enum.find_value(1..9, exact, fn digits ->
      short = exact |> :erlang.float_to_binary(scientific: digits) |> String.to_float()
      if <<short::float-32>> == <<exact::float-32>>, do: short
    end)
  end

  def single(value),
    do: raise(ArgumentError, "expected a number of 32 bits, got: #{inspect(value)}")

  # Structs

  def frame_struct(%Game{fields: fields}),
    do: for(field <- fields, do: {field.name, field.default}) ++ [previous_action: nil]

  def action_struct(%Game{input: input}),
    do: for(part <- input, do: {part.name, nil}) ++ [confidence: nil, frame: nil]

  # Heads

  @doc "Returns the kind of the head that chooses a part."
  def kind_of_head(%{type: {:flags, names}}), do: {:bernoulli, length(names)}
  def kind_of_head(%{type: {:choice, n}}), do: {:categorical, n}
  def kind_of_head(%{type: {:axis, _min, _max}, steps: steps}), do: {:categorical, steps}
  def kind_of_head(%{type: {:continuous, n, min, max}}), do: {:gaussian, n, min, max}

  @doc "Returns the number of logits of the head that chooses a part."
  def logits(part), do: part |> kind_of_head() |> Head.logits()

  @doc "Returns whether these heads choose the parts of the game's input."
  def chosen_by?(%Game{input: input}, heads) do
    input != [] and length(input) == length(heads) and
      Enum.zip(input, heads)
      |> Enum.all?(fn {part, head} ->
        Spec.text(part.name) == Spec.text(head.name) and chooses?(part, head.kind)
      end)
  end

  defp chooses?(%{type: {:axis, _min, _max}}, {:categorical, _n}), do: true
  defp chooses?(part, kind), do: kind_of_head(part) == kind
end
