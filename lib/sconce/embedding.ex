defmodule Sconce.Embedding do
  alias Sconce.{Error, Frame, Game, Native, Net, Options, Tensor}
  alias Sconce.Game.Declaration
  import Sconce.Tensor, only: [is_tensor: 1]

  @size [type: :pos_integer, max: 65_536]
  @floats [type: {:list, :float}, required: true]
  @schema [
    layout: [
      type: {:in, [:learned, :packed]},
      default: :learned,
      doc:
        "`:learned` looks up ids in trained tables. `:packed` has ids as plain numbers and is 288 wide " <>
          "(without a queue and a delay id); it takes only the options `:queue_depth`, `:num_delays` and " <>
          "`:previous_action`."
    ],
    action_embed_size: @size ++ [default: 64, doc: "Width of the action table."],
    character_embed_size: @size ++ [default: 64, doc: "Width of the character table."],
    stage_embed_size: @size ++ [default: 8, doc: "Width of the stage table."],
    num_player_names: [
      type: :non_neg_integer,
      max: 65_536,
      default: 0,
      doc: "Width of the one-hot vector of `name_id`; 0 leaves it out."
    ],
    num_projectiles: [
      type: {:in, 0..5},
      default: 5,
      doc: "Projectile slots; 0 leaves them out."
    ],
    queue_depth: [
      type: {:in, 1..64},
      default: 1,
      doc:
        "Inputs in the vector. 1: the previous action, which is the input that led to the frame. More: " <>
          "the latest inputs, newest first, also those that the frame does not show yet."
    ],
    num_delays: [
      type: :non_neg_integer,
      max: 65_536,
      default: 0,
      doc:
        "Width of the delay id, a one-hot vector of the frame delay. Its last class also means every " <>
          "longer delay: 19 tells the delays 0..18 apart, 9 is ExPhil's width, 0 leaves it out."
    ],
    previous_action: [
      type: :boolean,
      default: true,
      doc:
        "Shows the previous action. `false`: its place holds zeros, in training and in play, also if a frame gives " <>
          "a previous action. A queue needs `true`. A `:prior` reads the previous action in any case."
    ]
  ]
  @embed [
    as: [
      type: {:in, [:auto, :binaries, :nx]},
      default: :auto,
      doc: "Form of the answer; `:auto` is tensors for a tensor."
    ]
  ]
  # The options that the packed layout takes.
  @past [:queue_depth, :num_delays, :previous_action]
  @declared [
    layout: [
      type: {:in, [:learned, :packed]},
      default: :learned,
      doc: "`:learned` looks up ids in trained tables; `:packed` has them as plain numbers."
    ],
    embed_sizes: [
      type: :any,
      default: [],
      doc: "Widths of trained tables by name, where they differ from those of the game."
    ],
    queue_depth: @schema[:queue_depth],
    num_delays: @schema[:num_delays]
  ]
  @defaults for {name, option} <- @schema, do: {name, option[:default]}
  @packed Keyword.merge(@defaults, layout: :packed, num_player_names: 112)

  @moduledoc """
  How a frame becomes a vector: the input layout of a policy, as data.

    * `{:vector, n}` - `n` numbers, used unchanged.
    * `{:normalised, mean: [..], deviation: [..]}` - as many numbers, each less its mean and divided by its
      deviation, bounded to -10..10. `Sconce.PPO` makes it with `normalise_observations: true`.
    * `{:net, spec}` - the inputs of a `Sconce.Net.Spec`, one after the other: an image, a spectrum, readings of sensors.
      The output of the network, a vector, enters the backbone, and the network learns with the policy. It runs on a CPU, in
      f32. `spec` may be the options of `Sconce.Net.Spec.new/1`. Inputs of tokens are refused, and so are batch norms,
      because a policy would play by other numbers than those it was trained with.
    * `:melee` or `{:melee, opts}` - a `Sconce.Frame`: continuous features, then one row of a trained
      table for each id.
    * A `Sconce.Game` or a module that uses it, alone or as `{game, opts}` - a frame of that game.

  `schema/1` returns the layout of the vector as data, and `print_schema/1` prints it. Corpora and live
  frames share one implementation. Live frames are checked: a number that is not finite, or an id
  without a row, is an error that names the field and the value.

  ## Options

  The Melee embedding takes

  #{Options.docs(@schema)}

  The vector of a declared game (`MyGame` or `{MyGame, opts}`) holds its fields in order, then the previous input,
  then the rows of trained tables. This embedding takes

  #{Options.docs(@declared)}

  ## Delay and queue

  With a frame delay of `d`, an input takes effect `d` frames late: the state of a frame does not show the last `d`
  inputs of the player. A policy with `queue_depth: k` reads the last `k` inputs, newest first, 13 numbers each. The
  first `d` of them have not taken effect yet, and the next one led to the frame. A depth of `d + 1` or more
  therefore covers every pending input.

  Queued inputs are rounded to the buckets of the policy's heads, in training too. The previous action of
  `queue_depth: 1` is not rounded. An input that does not exist, or that `:previous_dropout` removed, is all zeros.

  Training fills the queue and the delay id from the run's `:frame_delay`, or with `:frame_delay_max` from the delay
  of each window. Evaluation uses its own `:frame_delay`. A `Sconce.Session` keeps the inputs itself. In `embed/2`,
  which sees a single frame, the queue and the delay id are zeros.
  """

  @typedoc "A complete embedding, with every option, as `new!/1` returns it."
  @type t ::
          {:vector, pos_integer}
          | {:normalised, keyword}
          | {:net, Net.Spec.t()}
          | {:melee, keyword}
          | {Game.t(), keyword}

  @typedoc "An embedding as a caller may write it."
  @type like ::
          :melee
          | Game.like()
          | {:melee | Game.like(), keyword}
          | {:vector, pos_integer}
          | {:normalised, keyword}
          | {:net, Net.Spec.t() | keyword}

  @typedoc "A part of the vector: `width` numbers from `offset` on."
  @type feature :: %{
          name: String.t(),
          offset: non_neg_integer,
          width: pos_integer,
          formula: String.t()
        }

  @doc """
  Returns the embedding with every option filled in. Raises `ArgumentError` if an option is invalid.

      iex> Sconce.Embedding.new!({:vector, 4})
      {:vector, 4}
      iex> {:melee, opts} = Sconce.Embedding.new!({:melee, stage_embed_size: 4})
      iex> Keyword.take(opts, [:layout, :stage_embed_size])
      [layout: :learned, stage_embed_size: 4]
      iex> Sconce.Embedding.new!({:net, input: [1, 8, 8], layers: [:flatten, {:dense, 4}]})
      {:net, Sconce.Net.Spec.new(input: [1, 8, 8], layers: [:flatten, {:dense, 4}])}
      iex> Sconce.Embedding.new!({:melee, num_projectile: 2})
      ** (ArgumentError) unknown option :num_projectile, did you mean :num_projectiles?
  """
  @spec new!(like) :: t
  def new!({:vector, n}) do
    [vector: n] = Options.validate!([vector: n], vector: @size)
    {:vector, n}
  end

  def new!({:normalised, opts}) do
    own = Options.validate!(opts, mean: @floats, deviation: @floats)
    [mean: mean, deviation: deviation] = for {name, list} <- own, do: {name, singles(list)}

    (mean != [] and length(mean) == length(deviation) and Enum.all?(deviation, &(&1 > 0))) ||
      raise ArgumentError,
            "option :deviation: expected as many numbers above 0 as means, got: #{inspect(deviation)}"

    {:normalised, mean: mean, deviation: deviation}
  end

  def new!({:net, spec}), do: {:net, Net.Spec.new(spec)}
  def new!(:melee), do: new!({:melee, []})

  def new!({:melee, opts}) when is_list(opts) do
    options = Options.validate!(opts, @schema)
    depth = options[:queue_depth]

    depth == 1 or options[:previous_action] ||
      raise ArgumentError, "option :queue_depth: #{depth} needs previous_action: true"

    if options[:layout] == :packed, do: packed!(opts), else: {:melee, options}
  end

  def new!({game, opts} = given) when is_list(opts) do
    if Game.game?(game), do: declared!(Game.of!(game), opts), else: none!(given)
  end

  def new!(given), do: if(Game.game?(given), do: new!({given, []}), else: none!(given))

  # The native side keeps 32-bit floats.
  defp singles(list), do: Enum.map(list, &Declaration.single/1)

  defp none!(given) do
    raise ArgumentError,
          "expected an embedding, {:vector, n}, {:net, spec}, :melee, {:melee, opts} or a Sconce.Game, " <>
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
  # Whether the term has the form that `new!/1` returns.
  @spec whole?(term) :: boolean
  def whole?({kind, _}) when kind in [:vector, :normalised, :melee], do: true
  def whole?({:net, %Net.Spec{}}), do: true
  def whole?({%Game{}, options}), do: Keyword.keyword?(options)
  def whole?(_other), do: false

  @doc false
  # Whether a frame is a vector of numbers and nothing else.
  @spec numbers?(t) :: boolean
  def numbers?({kind, _}), do: kind in [:vector, :normalised, :net]

  defp packed!(opts) do
    for {name, _value} <- opts, name not in [:layout | @past] do
      raise ArgumentError, "the packed layout has no option #{inspect(name)}"
    end

    {:melee, packed(opts)}
  end

  # Options with their default value are left out, so that equal embeddings have one form.
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
      {:normalised, own} -> %{normalised: Map.new(own)}
      {:net, spec} -> %{net: Net.Spec.to_native(spec)}
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
  # The reverse of `to_native/1`, for the Spec of a checkpoint.
  @spec from_native(map) :: t
  def from_native(%{vector: n}), do: {:vector, n}

  def from_native(%{normalised: %{mean: mean, deviation: deviation}}),
    do: {:normalised, mean: singles(mean), deviation: singles(deviation)}

  def from_native(%{net: net}), do: {:net, Net.Spec.from_native(net)}

  def from_native(%{melee: %{layout: "packed"} = options}),
    do: {:melee, packed(Map.to_list(options))}

  def from_native(%{melee: %{layout: "learned"} = options}) do
    options = %{options | layout: :learned}
    {:melee, for({name, default} <- @defaults, do: {name, Map.get(options, name, default)})}
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
  Returns the layout of the embedded vector: its features in order, without gaps.

      iex> {:ok, features} = Sconce.Embedding.schema(:melee)
      iex> hd(features)
      %{name: "own.percent", offset: 0, width: 1, formula: "percent / 100, clamp 0..5"}
      iex> List.last(features)
      %{name: "stage", offset: 420, width: 8, formula: "row of stage_embedding, 6 other"}
  """
  @spec schema(like) :: {:ok, [feature]} | {:error, Error.t()}
  def schema(embedding), do: embedding |> to_native() |> Native.embedding_schema()

  @doc """
  Prints the schema as a table.

      iex> table = ExUnit.CaptureIO.capture_io(fn -> Sconce.Embedding.print_schema(:melee) end)
      iex> table |> String.split("\\n") |> Enum.take(3)
      [
        "offset  width  name                          formula",
        "     0      1  own.percent                   percent / 100, clamp 0..5",
        "     1      1  own.facing                    sign of facing"
      ]
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
  Packs a frame as the raw row that the native side reads: 32-bit floats, little-endian.

  A Melee frame has any form that `Sconce.Frame.pack/1` takes. A vector is a binary or a list of numbers. Either
  frame may also be an Nx tensor of the raw row, `{n}`, or of more dimensions that are all 1 but the last.

      iex> Sconce.Embedding.pack({:vector, 2}, [1, -0.5])
      {:ok, <<0, 0, 128, 63, 0, 0, 0, 191>>}
  """
  @spec pack(like, term) :: {:ok, binary} | {:error, Error.t()}
  def pack(embedding, tensor) when is_tensor(tensor) do
    with {:ok, %{data: row, shape: shape}} <- Tensor.read(tensor, "frame", :frame, [:floats]) do
      if Tuple.product(shape) == last(shape),
        do: pack(embedding, row),
        else: {:error, mismatch("a tensor of one frame", "the shape #{inspect(shape)}")}
    end
  end

  def pack({:normalised, own}, numbers), do: pack({:vector, length(own[:mean])}, numbers)

  def pack({:net, %Net.Spec{} = spec}, numbers),
    do: pack({:vector, Net.Spec.numbers(spec)}, numbers)

  def pack({:vector, n}, numbers) when is_list(numbers) and length(numbers) == n,
    do: pack_numbers(numbers)

  def pack({:vector, n}, row) when byte_size(row) == 4 * n, do: {:ok, row}
  def pack({:vector, n}, other) when is_integer(n), do: {:error, misfit(n, other)}
  def pack(melee, frame) when melee == :melee or elem(melee, 0) == :melee, do: Frame.pack(frame)
  def pack({%Game{} = game, _options}, frame), do: Game.Frame.pack(game, frame)

  def pack(other, frame) do
    case new!(other) do
      {%Game{} = game, _options} -> Game.Frame.pack(game, frame)
      {:net, _spec} = whole -> pack(whole, frame)
      _whole -> Options.argument!("embedding", other, "a complete embedding")
    end
  end

  defp pack_numbers(numbers) do
    {:ok, for(number <- numbers, into: <<>>, do: <<number::float-32-little>>)}
  rescue
    # Packing failed: the list holds something that is not a number, or an integer beyond any float. A float beyond 32
    # bits becomes an infinity, which the embedding reports.
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

  # The size of the last dimension; a number has one.
  defp last({}), do: 1
  defp last(shape), do: elem(shape, tuple_size(shape) - 1)

  @doc """
  Embeds one frame: returns the continuous features (32-bit floats, little-endian) and the ids of the table
  rows that follow them. The frame is checked as in a session.

      iex> Sconce.Embedding.embed({:vector, 2}, [1.0, 2.0])
      {:ok, {<<0, 0, 128, 63, 0, 0, 0, 64>>, []}}

  If Nx is loaded, `frame` may be a tensor `{.., n}` of raw rows, of any number of dimensions. The answer is then two
  tensors with the same leading dimensions and their names: f32 of `{.., features}`, and u32 of `{.., ids}`, which is
  nil if the embedding has no trained tables. With `as: :nx` the frame of any other form gives tensors, too, and with
  `as: :binaries` a tensor gives two binaries.

  #{Options.docs(@embed)}

  ```elixir
  {:ok, {features, nil}} = Sconce.Embedding.embed({:vector, 4}, Nx.iota({32, 60, 4}))
  Nx.shape(features) #=> {32, 60, 4}
  ```
  """
  @spec embed(like, term, keyword) ::
          {:ok, {binary | struct, [non_neg_integer] | binary | struct | nil}}
          | {:error, Error.t()}
  def embed(embedding, frame, opts \\ []) do
    [as: as] = Options.validate!(opts, @embed)
    if as == :nx, do: Tensor.nx!("option :as")
    native = to_native(embedding)

    with {:ok, rows, lead} <- rows(embedding, frame) do
      case {as, lead} do
        {:auto, nil} -> Native.embed(native, rows)
        {:binaries, nil} -> Native.embed(native, rows)
        {:binaries, _lead} -> Native.embed_many(native, rows)
        {_nx, lead} -> tensors(Native.embed_many(native, rows), lead || [])
      end
    end
  end

  # Raw rows, and for a tensor its leading dimensions with their names.
  defp rows(embedding, tensor) when is_tensor(tensor) do
    with {:ok, %{data: rows, shape: shape, names: names}} <-
           Tensor.read(tensor, "frames", :embed, [:floats]),
         :ok <- width(embedding, last(shape)) do
      sizes = shape |> Tuple.to_list() |> Enum.drop(-1)
      {:ok, rows, Enum.zip(sizes, names ++ List.duplicate(nil, length(sizes)))}
    end
  end

  defp rows(embedding, frame), do: with({:ok, row} <- pack(embedding, frame), do: {:ok, row, nil})

  # A row of zeros of the same width is packed, because packing knows the width.
  defp width(embedding, n) do
    case pack(embedding, <<0::size(n * 32)>>) do
      {:ok, _row} ->
        :ok

      {:error, %{details: details} = error} ->
        {:error, %{error | op: :embed, details: %{details | what: "a row of the frames"}}}
    end
  end

  defp tensors({:ok, {features, ids}}, lead) do
    {sizes, names} = Enum.unzip(lead)
    rows = Enum.product(sizes)

    of = fn
      # Nx has no empty tensor.
      "", _type ->
        nil

      data, type ->
        shape = List.to_tuple(sizes ++ [div(byte_size(data), 4 * rows)])
        Tensor.from_binary(data, type, shape, names ++ [nil])
    end

    {:ok, {of.(features, {:f, 32}), of.(ids, {:u, 32})}}
  end

  defp tensors(error, _lead), do: error
end
