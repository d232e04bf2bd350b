defmodule Sconce.Embedding do
  alias Sconce.{Error, Frame, Game, Native, Options, Tensor}
  alias Sconce.Game.Declaration

  @size [type: :pos_integer, max: 65_536]
  @schema [
    layout: [
      type: {:in, [:learned, :packed]},
      default: :learned,
      doc:
        "`:learned` looks ids up in trained tables; `:packed` is 288 wide (without a queue and a " <>
          "delay id) with ids as plain numbers, and of the others it has these two alone."
    ],
    action_embed_size: @size ++ [default: 64, doc: "Width of the action table."],
    character_embed_size: @size ++ [default: 64, doc: "Width of the character table."],
    stage_embed_size: @size ++ [default: 8, doc: "Width of the stage table."],
    num_player_names: [
      type: :non_neg_integer,
      max: 65_536,
      default: 0,
      doc: "Width of the one-hot of `name_id`, 0 to leave it out."
    ],
    num_projectiles: [
      type: {:in, 0..5},
      default: 5,
      doc: "Projectile slots, 0 to leave them out."
    ],
    queue_depth: [
      type: {:in, 1..64},
      default: 1,
      doc:
        "Controllers in the vector. 1: the previous action, the input that led to the frame. More: " <>
          "the inputs given last, newest first, whether the frame shows them yet or not."
    ],
    num_delays: [
      type: :non_neg_integer,
      max: 65_536,
      default: 0,
      doc:
        "Width of the delay id, the one-hot of the frame delay, whose last class is that delay or " <>
          "a longer one: 9 is the application's, 19 tells 0..18 apart, 0 leaves it out."
    ]
  ]
  # What the packed layout has of them.
  @past [:queue_depth, :num_delays]
  @declared [
    layout: [
      type: {:in, [:learned, :packed]},
      default: :learned,
      doc: "`:learned` looks ids up in trained tables; `:packed` has them as plain numbers."
    ],
    embed_sizes: [
      type: :any,
      default: [],
      doc: "Widths of trained tables by their names, where they are not the game's own."
    ],
    queue_depth: @schema[:queue_depth],
    num_delays: @schema[:num_delays]
  ]
  @defaults for {name, option} <- @schema, do: {name, option[:default]}
  @packed Keyword.merge(@defaults, layout: :packed, num_player_names: 112)

  @moduledoc """
  How a frame becomes a vector.

    * `{:vector, n}` - `n` numbers, taken as they are;
    * `:melee` or `{:melee, opts}` - a `Sconce.Frame`: continuous features, then the rows of trained
      tables that its ids name;
    * a `Sconce.Game` or a module that uses it, alone or as `{game, opts}` - a frame of that game.

  The Melee embedding takes

  #{Options.docs(@schema)}

  A declared game, `MyGame` or `{MyGame, opts}`, has its fields in order, then the previous input, then the rows of
  trained tables. It takes

  #{Options.docs(@declared)}

  What stands where in the vector is data, see `schema/1` and `print_schema/1`. One implementation
  serves corpora and live frames. Live ones are checked: a number that is not finite or an id that
  has no row is an error that names the field and the value.

  ## Delay and queue

  With a frame delay `d` an input shows `d` frames later than it could: the state of a frame does not
  tell what the player has pressed since. A policy with `queue_depth: k` reads the last `k` inputs, 13
  numbers each: the first `d` are under way, the one after them led to the frame. So `d + 1` or more see
  all there is. They stand in the buckets of the policy's heads, as it would have pressed them, also in
  training; the previous action of `queue_depth: 1` stands there as the frame has it. Where there was no
  input, or it is forgotten (`:previous_dropout`), there are zeros.

  Training fills both from the run's `:frame_delay`, or from each window's own with `:frame_delay_max`;
  evaluation from its `:frame_delay`; a `Sconce.Session` keeps the inputs itself. A frame alone, as in
  `embed/2`, says nothing of either, and has zeros there.
  """

  @typedoc "What an embedding is, with every option; `new!/1` makes it."
  @type t :: {:vector, pos_integer} | {:melee, keyword} | {Game.t(), keyword}

  @typedoc "What may be said of it."
  @type like :: :melee | Game.like() | {:melee | Game.like(), keyword} | {:vector, pos_integer}

  @type feature :: %{
          name: String.t(),
          offset: non_neg_integer,
          width: pos_integer,
          formula: String.t()
        }

  @doc """
  The embedding with every option filled in. Raises `ArgumentError` where an option does not fit.

      iex> Sconce.Embedding.new!({:vector, 4})
      {:vector, 4}
      iex> {:melee, opts} = Sconce.Embedding.new!({:melee, stage_embed_size: 4})
      iex> Keyword.take(opts, [:layout, :stage_embed_size])
      [layout: :learned, stage_embed_size: 4]
      iex> Sconce.Embedding.new!({:melee, num_projectile: 2})
      ** (ArgumentError) unknown option :num_projectile, did you mean :num_projectiles?
  """
  @spec new!(like) :: t
  def new!({:vector, n}) do
    [vector: n] = Options.validate!([vector: n], vector: @size)
    {:vector, n}
  end

  def new!(:melee), do: new!({:melee, []})

  def new!({:melee, opts}) when is_list(opts) do
    options = Options.validate!(opts, @schema)
    if options[:layout] == :packed, do: packed!(opts), else: {:melee, options}
  end

  def new!({game, opts} = given) when is_list(opts) do
    if Game.game?(game), do: declared!(Game.of!(game), opts), else: none!(given)
  end

  def new!(given), do: if(Game.game?(given), do: new!({given, []}), else: none!(given))

  defp none!(given) do
    raise ArgumentError,
          "expected an embedding, {:vector, n}, :melee, {:melee, opts} or a Sconce.Game, " <>
            "got: #{inspect(given)}"
  end

  defp declared!(game, opts) do
    options = Options.validate!(opts, @declared)
    sizes = options[:embed_sizes]

    (Keyword.keyword?(sizes) and Enum.all?(sizes, &match?({_, n} when n in 1..65_536, &1))) ||
      raise ArgumentError, "option :embed_sizes: expected widths by names, got: #{inspect(sizes)}"

    for {table, _width} <- sizes,
        do: Options.known!(table, Enum.map(game.tables, & &1.name), "table")

    {game, Keyword.replace!(options, :embed_sizes, Enum.sort(sizes))}
  end

  @doc false
  # Whether it is what `new!/1` makes.
  @spec whole?(term) :: boolean
  def whole?({kind, _}) when kind in [:vector, :melee], do: true
  def whole?({%Game{}, options}), do: Keyword.keyword?(options)
  def whole?(_other), do: false

  defp packed!(opts) do
    for {name, _value} <- opts, name not in [:layout | @past] do
      raise ArgumentError, "the packed layout has no option #{inspect(name)}"
    end

    {:melee, packed(opts)}
  end

  # One embedding has one form: what is as usual is not said.
  defp packed(opts) do
    past = for name <- @past, opts[name] not in [nil, @packed[name]], do: {name, opts[name]}
    [layout: :packed] ++ past
  end

  @doc false
  # The form that the native side reads.
  @spec to_native(term) :: map
  def to_native(embedding) do
    case new!(embedding) do
      {:vector, n} -> %{vector: n}
      {:melee, [{:layout, :packed} | past]} -> %{melee: Map.new(Keyword.merge(@packed, past))}
      {:melee, options} -> %{melee: Map.new(options)}
      {%Game{} = game, options} -> %{game: declared(game, options)}
    end
  end

  defp declared(game, options) do
    options
    |> Map.new()
    |> Map.replace!(:embed_sizes, Map.new(options[:embed_sizes]))
    |> Map.put(:game, Declaration.to_native(game))
  end

  @doc false
  # The way back, from a checkpoint's Spec.
  @spec from_native(map) :: t
  def from_native(%{vector: n}), do: {:vector, n}

  def from_native(%{melee: %{layout: "packed"} = options}),
    do: {:melee, packed(Map.to_list(options))}

  def from_native(%{melee: %{layout: "learned"} = options}) do
    options = %{options | layout: :learned}
    {:melee, for({name, _} <- @schema, do: {name, Map.fetch!(options, name)})}
  end

  def from_native(%{game: %{game: game} = options}) do
    sizes =
      for {table, width} <- options.embed_sizes,
          do: {Sconce.Policy.Spec.local(to_string(table)), width}

    layout = if options.layout == "packed", do: :packed, else: :learned

    {Declaration.from_native(game),
     [
       layout: layout,
       embed_sizes: Enum.sort(sizes),
       queue_depth: options.queue_depth,
       num_delays: options.num_delays
     ]}
  end

  @doc """
  What stands at which offset of the embedded vector, in order and without a gap.

      iex> {:ok, features} = Sconce.Embedding.schema(:melee)
      iex> hd(features)
      %{name: "own.percent", offset: 0, width: 1, formula: "percent / 100, clamp 0..5"}
      iex> List.last(features)
      %{name: "stage", offset: 420, width: 8, formula: "row of stage_embedding, 6 other"}
  """
  @spec schema(like) :: {:ok, [feature]} | {:error, Error.t()}
  def schema(embedding), do: embedding |> to_native() |> Native.embedding_schema()

  @doc """
  Prints the schema as a table:

  ```text
  offset  width  name                          formula
       0      1  own.percent                   percent / 100, clamp 0..5
       1      1  own.facing                    sign of facing
  ```
  """
  @spec print_schema(like) :: :ok | {:error, Error.t()}
  def print_schema(embedding) do
    with {:ok, features} <- schema(embedding) do
      longest = features |> Enum.map(&String.length(&1.name)) |> Enum.max() |> max(4)
      IO.puts("offset  width  #{String.pad_trailing("name", longest)}  formula")
      Enum.each(features, &IO.puts(row(&1, longest)))
    end
  end

  defp row(feature, longest) do
    Enum.join(
      [
        feature.offset |> to_string() |> String.pad_leading(6),
        feature.width |> to_string() |> String.pad_leading(5),
        String.pad_trailing(feature.name, longest),
        feature.formula
      ],
      "  "
    )
  end

  @doc """
  The raw row that goes to the native side: numbers as 32-bit floats, little-endian.

  For Melee what `Sconce.Frame.pack/1` takes, for a vector a binary or a list of numbers; for either
  an Nx tensor of the row.

      iex> Sconce.Embedding.pack({:vector, 2}, [1, -0.5])
      {:ok, <<0, 0, 128, 63, 0, 0, 0, 191>>}
  """
  @spec pack(like, term) :: {:ok, binary} | {:error, Error.t()}
  def pack(embedding, %{__struct__: Nx.Tensor} = tensor),
    do: pack(embedding, Tensor.floats(tensor))

  def pack({:vector, n}, numbers) when is_list(numbers) and length(numbers) == n,
    do: pack_numbers(numbers)

  def pack({:vector, n}, row) when byte_size(row) == 4 * n, do: {:ok, row}
  def pack({:vector, n}, other) when is_integer(n), do: {:error, misfit(n, other)}
  def pack(melee, frame) when melee == :melee or elem(melee, 0) == :melee, do: Frame.pack(frame)
  def pack({%Game{} = game, _options}, frame), do: Game.Frame.pack(game, frame)

  def pack(other, frame) do
    case new!(other) do
      {%Game{} = game, _options} -> Game.Frame.pack(game, frame)
      _whole -> Options.argument!("embedding", other, "a whole one")
    end
  end

  defp pack_numbers(numbers) do
    {:ok, for(number <- numbers, into: <<>>, do: <<number::float-32-little>>)}
  rescue
    # Not a number, or an integer beyond any float. A float beyond 32 bits becomes an infinity,
    # which embedding it names.
    ArgumentError ->
      {:error, mismatch("numbers of 32 bits", shown(numbers))}
  end

  defp misfit(n, row) when is_binary(row),
    do: mismatch("#{4 * n} bytes", "#{byte_size(row)} bytes")

  defp misfit(n, list) when length(list) >= 0, do: mismatch("#{n} numbers", length(list))
  defp misfit(n, other), do: mismatch("#{n} numbers or a binary", shown(other))

  defp shown(term), do: inspect(term, limit: 20, printable_limit: 80)

  defp mismatch(expected, got) do
    %Error{kind: :mismatch, op: :frame, details: %{what: "frame", expected: expected, got: got}}
  end

  @doc """
  Embeds one frame: the continuous features (32-bit floats, little-endian) and the ids whose rows
  follow them. As strict as a session is.

      iex> Sconce.Embedding.embed({:vector, 2}, [1.0, 2.0])
      {:ok, {<<0, 0, 128, 63, 0, 0, 0, 64>>, []}}
  """
  @spec embed(like, term) :: {:ok, {binary, [non_neg_integer]}} | {:error, Error.t()}
  def embed(embedding, frame) do
    native = to_native(embedding)

    with {:ok, row} <- pack(embedding, frame) do
      Native.embed(native, row)
    end
  end
end
