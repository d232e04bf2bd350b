defmodule Sconce.Corpus.Build do
  @moduledoc false
  # Makes a corpus of vectors and labels, or of the rows of a `Sconce.Game`.

  alias Sconce.Corpus.Catalogue
  alias Sconce.{Error, Game, Native, Options, Tensor}
  alias Sconce.Game.Declaration
  alias Sconce.Native.Call
  alias Sconce.Policy.{Head, Spec}

  @doc "Makes the corpus. Returns its folder."
  @spec run({:vector, pos_integer} | Game.like(), Enumerable.t(), keyword) ::
          {:ok, Path.t()} | {:error, Error.t()}
  def run({:vector, size}, games, opts)
      when size in 1..0xFFFF_FFFF and length(games) >= 0 do
    opts = Options.validate!(opts, Catalogue.schema(:build))
    opts[:columns] == [] || raise ArgumentError, "option :columns: vectors have none"
    heads = heads!(opts[:heads])
    type = if words?(heads), do: :u16, else: :f32
    games = games |> Enum.with_index() |> Enum.map(&game!(&1, type))
    native = for [name, kind] <- heads, do: [name, Head.to_native(kind)]
    schema = %{name: "vector", size: size, heads: native}
    start = &Native.corpus_build(&1, schema, games, Path.expand(opts[:into]), opts[:compress])
    with {:ok, _info} <- Call.in_background(start), do: {:ok, opts[:into]}
  end

  def run({:vector, size}, games, _opts) when size in 1..0xFFFF_FFFF,
    do: Options.argument!("games", games, "a list of {x, labels}")

  def run(game, games, opts) do
    Game.game?(game) || Options.argument!("schema", game, "{:vector, n} or a Sconce.Game")
    opts = Options.validate!(opts, Catalogue.schema(:build))
    opts[:heads] == nil || raise ArgumentError, "option :heads: a game declares its input"
    game = Game.of!(game)

    beside =
      for name <- [:reward, :end, :weight, :log_likelihood], name in opts[:columns], do: name

    schema = %{name: "game", game: Declaration.to_native(game), beside: beside}

    into = Path.expand(opts[:into])

    with {:ok, builder} <- Native.builder_open(schema, into, false, opts[:compress], nil),
         :ok <- add_all(builder, game, beside, games),
         {:ok, _made} <- Native.builder_finish(builder, true),
         do: {:ok, opts[:into]}
  end

  # Removes the unfinished corpus if anything raises, throws or exits.
  defp add_all(builder, game, beside, games) do
    games
    |> Stream.with_index()
    |> Enum.reduce_while(:ok, fn {rows, i}, :ok ->
      with {:ok, rows} <- rows!(rows, i, game, beside),
           {:ok, _added} <- Native.builder_add(builder, rows) do
        {:cont, :ok}
      else
        {:error, _error} = refused -> {:halt, refused}
      end
    end)
    |> case do
      :ok ->
        :ok

      refused ->
        Native.builder_finish(builder, false)
        refused
    end
  catch
    kind, reason ->
      Native.builder_finish(builder, false)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  defp rows!(rows, i, game, beside) do
    rows
    |> Stream.with_index()
    |> Enum.reduce_while([], fn {row, frame}, before ->
      case Game.Frame.row(game, beside, row) do
        {:ok, numbers} -> {:cont, [before, numbers]}
        {:error, error} -> {:halt, {:error, located(error, i, frame)}}
      end
    end)
    |> case do
      {:error, _error} = refused -> refused
      numbers -> {:ok, IO.iodata_to_binary(numbers)}
    end
  rescue
    error in Protocol.UndefinedError ->
      Options.enumerable!(error, rows, "game #{i}", "an enumerable of rows", __STACKTRACE__)
  end

  defp located(error, game, frame) do
    at = "game #{game}, frame #{frame}, "

    details =
      Map.new(error.details, fn {k, v} -> {k, if(k in [:what, :field], do: at <> v, else: v)} end)

    %{error | op: :build, details: details}
  end

  defp words?(heads),
    do: Head.type(for([_name, kind] <- heads, do: %{kind: kind})) == {:u, 16}

  defp heads!(heads) do
    Spec.named?(heads) || Options.argument!("option :heads", heads, "a list of {name, kind}")
    for {name, kind} <- heads, do: [Spec.name!(name), head!(name, kind)]
  end

  # The native side checks sizes.
  defp head!(_name, {kind, size} = head)
       when kind in [:bernoulli, :categorical] and is_integer(size),
       do: head

  defp head!(name, other), do: Head.kind!(name, other)

  defp game!({{x, labels}, game}, type), do: {binary!(x, :f32, game), binary!(labels, type, game)}

  defp game!({other, game}, _type),
    do:
      raise(ArgumentError, "game #{game}: expected {x, labels}, got: #{inspect(other, limit: 5)}")

  defp binary!(data, _type, _game) when is_binary(data), do: data

  defp binary!(%{__struct__: Nx.Tensor} = tensor, :f32, _game), do: Tensor.floats(tensor)

  # Converts a tensor through its values, because truncation to 16 bits would hide values that are not labels.
  defp binary!(%{__struct__: Nx.Tensor} = tensor, :u16, game),
    do: tensor |> Tensor.numbers() |> binary!(:u16, game)

  defp binary!(list, type, game) when is_list(list),
    do: for(x <- flat!(list, game), into: <<>>, do: number!(x, type, game))

  defp binary!(other, _type, game) do
    raise ArgumentError,
          "game #{game}: expected a binary, a list or a tensor, got: #{inspect(other, limit: 5)}"
  end

  defp flat!(list, game) do
    List.flatten(list)
  rescue
    # `List.flatten/1` raises for an improper list.
    _error in [FunctionClauseError, ArgumentError] ->
      Options.argument!("game #{game}", list, "a binary, a list or a tensor")
  end

  # The largest finite f32.
  @largest 3.4028234e38

  defp number!(x, :f32, _game) when is_number(x) and abs(x) <= @largest,
    do: <<x::float-32-little>>

  defp number!(label, :u16, _game) when label in 0..65_535, do: <<label::16-little>>

  defp number!(x, :f32, game),
    do: raise(ArgumentError, "game #{game}: expected numbers of 32 bits, got: #{inspect(x)}")

  defp number!(x, :u16, game),
    do: raise(ArgumentError, "game #{game}: expected labels of 0..65535, got: #{inspect(x)}")
end
