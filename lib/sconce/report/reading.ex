defmodule Sconce.Report.Reading do
  @moduledoc false
  # Reads what a report needs of a frame: the moment `{frame, stage, players}`. A player is
  # `{percent, action, action_frame, stocks, character}`.

  alias Sconce.{Corpus, Error, Frame, Native}
  alias Sconce.Monitor.Json

  # The columns of a shard that are fields of a player here, in this order.
  @player ~w(percent action action_frame stock character)
  # A longer header is not one of a corpus.
  @longest_header 1_000_000

  @doc "Returns the moment of a frame in one of its forms."
  def moment(
        <<percent::float-32-little, _::binary-size(12), action::float-32-little,
          character::float-32-little, _::binary-size(40), age::float-32-little,
          stock::float-32-little, _::binary-size(28), percent_2::float-32-little,
          _::binary-size(12), action_2::float-32-little, character_2::float-32-little,
          _::binary-size(40), age_2::float-32-little, stock_2::float-32-little,
          _::binary-size(28), stage::float-32-little, frame::float-32-little, _::binary>> = row
      )
      when byte_size(row) == unquote(4 * length(Frame.columns())) do
    players =
      {{percent, trunc(action), age, trunc(stock), trunc(character)},
       {percent_2, trunc(action_2), age_2, trunc(stock_2), trunc(character_2)}}

    {:ok, {trunc(frame), trunc(stage), players}}
  end

  def moment(frame) do
    case Frame.pack(frame) do
      {:ok, ^frame} -> {:error, error(:non_finite, %{what: "frame"})}
      {:ok, row} -> moment(row)
      {:error, error} -> {:error, %{error | op: :report}}
    end
  end

  @doc "Returns the entries of a corpus of Melee."
  def entries(%Corpus{info: %{schema: :melee}} = corpus), do: Corpus.games(corpus)

  def entries(%Corpus{info: info}) do
    got = if is_map(info), do: info[:schema], else: nil
    {:error, error(:mismatch, %{what: "corpus", expected: "games of Melee", got: got})}
  end

  @doc "Returns the entry of a game."
  def entry(entries, game) do
    with :error <- Enum.fetch(entries, game) do
      details = %{field: "game", value: game, min: 0, max: length(entries) - 1}
      {:error, error(:out_of_range, details)}
    end
  end

  @doc "Returns the names of a game's players, the given one first."
  def names(entry, player) do
    [first, second] =
      for {tag, i} <- Enum.with_index(entry.tags, 1), do: if(tag == "", do: "P#{i}", else: tag)

    if player == 0, do: {first, second}, else: {second, first}
  end

  @doc "Returns the name of a game: that of its replay."
  def title(entry), do: entry.source |> Path.basename() |> Path.rootname(".slp")

  @doc "Returns the moments of a game, in which the given player is the first one."
  def moments(corpus, entry, game, player) do
    with {:ok, {rows, numbers, _labels, _width}} <-
           Native.corpus_recording(corpus.handle, game, player),
         {:ok, last} <- last(Path.join(corpus.dir, entry.file), entry.stage, player) do
      size = 4 * numbers
      {:ok, rows |> recorded(size) |> Kernel.++([last]) |> Enum.uniq_by(&elem(&1, 0))}
    end
  end

  defp recorded(rows, size) do
    for <<row::binary-size(size) <- rows>> do
      {:ok, moment} = moment(row)
      moment
    end
  end

  # The state after the last frame, which usually has the last death. A recording lacks it, because no input answers it.
  defp last(path, stage, player) do
    case File.open(path, [:read, :binary, :raw], &last_of(&1, stage, player)) do
      {:ok, {:ok, moment}} -> {:ok, moment}
      {:ok, {:error, reason}} -> {:error, error(:corrupt, %{what: path, reason: reason(reason)})}
      {:error, :enoent} -> {:error, error(:not_found, %{what: path})}
      {:error, reason} -> {:error, error(:io, %{path: path, reason: reason(reason)})}
    end
  end

  defp reason(reason) when is_binary(reason), do: reason
  defp reason(nil), do: "not a game of a corpus"
  defp reason(reason), do: reason |> :file.format_error() |> to_string()

  defp last_of(file, stage, player) do
    with {:ok, size} <- header(:file.pread(file, 0, 8)),
         {:ok, text} <- :file.pread(file, 8, size),
         {:ok, %{} = columns} <- Json.decode(text),
         read = &value(file, 8 + size, columns[&1]),
         {:ok, frame} <- read.("frame"),
         {:ok, own} <- player(read, player),
         {:ok, opponent} <- player(read, 1 - player),
         do: {:ok, {frame, stage, {own, opponent}}},
         else: (other -> failed(other))
  end

  defp failed({:error, reason}), do: {:error, reason}
  defp failed(_other), do: {:error, nil}

  defp header({:ok, <<size::64-little>>}) when size <= @longest_header, do: {:ok, size}
  defp header(_other), do: {:error, nil}

  defp player(read, player) do
    case for name <- @player, do: read.("p#{player}.#{name}") do
      [ok: percent, ok: action, ok: age, ok: stock, ok: character] ->
        {:ok, {percent / 1, trunc(action), age / 1, trunc(stock), trunc(character)}}

      _missing ->
        {:error, nil}
    end
  end

  # The last value of a column of one number a frame.
  defp value(file, data, %{"dtype" => type, "shape" => [_frames], "data_offsets" => [_, stop]})
       when is_integer(stop) do
    with size when is_integer(size) <- size(type),
         {:ok, bytes} <- :file.pread(file, data + stop - size, size),
         do: number(type, bytes),
         else: (_end_of_file -> {:error, nil})
  end

  defp value(_file, _data, _column), do: {:error, nil}

  defp size(type) when type in ["F32", "I32"], do: 4
  defp size("U16"), do: 2
  defp size("U8"), do: 1
  defp size(_other), do: nil

  defp number("F32", <<value::float-32-little>>), do: {:ok, value}
  defp number("I32", <<value::signed-32-little>>), do: {:ok, value}
  defp number("U16", <<value::16-little>>), do: {:ok, value}
  defp number("U8", <<value>>), do: {:ok, value}
  defp number(_type, _bytes), do: {:error, nil}

  defp error(kind, details), do: %Error{kind: kind, op: :report, details: details}
end
