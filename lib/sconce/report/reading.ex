defmodule Sconce.Report.Reading do
  @moduledoc false
  # Reads what a report needs of a frame: the moment `{frame, stage, players}`. A player is
  # `{percent, action, action_frame, stocks, character}`.

  alias Sconce.{Corpus, Error, Frame}

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
  def entries(%Corpus{info: %{schema: :melee, relabelled: false}} = corpus),
    do: Corpus.games(corpus)

  def entries(%Corpus{info: info}) do
    got =
      case info do
        %{relabelled: true} -> "frames of play, relabelled"
        %{schema: schema} -> schema
        _other -> nil
      end

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
  def moments(corpus, game, player) do
    with {:ok, rows} <- Corpus.states(corpus, game, player) do
      moments = for row <- rows, do: row |> moment() |> elem(1)
      {:ok, Enum.uniq_by(moments, &elem(&1, 0))}
    end
  end

  defp error(kind, details), do: %Error{kind: kind, op: :report, details: details}
end
