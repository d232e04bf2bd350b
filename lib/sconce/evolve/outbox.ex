defmodule Sconce.Evolve.Outbox do
  @moduledoc false
  # Elites on their way to another island: in messages of limited bytes, of which few wait for an answer. Migrants that find
  # no room are withheld: they stay in the archive, and later ones are drawn anew. All elites for a new island wait here.

  # Bytes of a message, unless a single elite has more.
  @max_bytes 1_048_576
  # Messages without an answer at most.
  @unanswered 4

  defstruct waiting: [], unanswered: 0

  @typedoc "`waiting` are messages in their order."
  @type t :: %__MODULE__{waiting: [[binary]], unanswered: non_neg_integer}

  @doc "Cuts elites, a list of three columns, into messages."
  @spec messages([binary], pos_integer) :: [[binary]]
  def messages([_solutions, objectives, _measures] = elites, max_bytes \\ @max_bytes) do
    case div(byte_size(objectives), 8) do
      0 ->
        []

      count ->
        widths = Enum.map(elites, &div(byte_size(&1), count))
        rows = max(div(max_bytes, Enum.sum(widths)), 1)

        for first <- 0..(count - 1)//rows do
          some = min(rows, count - first)

          for {column, width} <- Enum.zip(elites, widths),
              do: binary_part(column, first * width, some * width)
        end
    end
  end

  @doc "Takes migrants: returns the messages to send now, and the outbox, or `:withheld` if there is no room."
  @spec offer(t, [binary]) :: {[[binary]], t} | :withheld
  def offer(%{waiting: waiting, unanswered: unanswered} = outbox, elites) do
    if waiting == [] and unanswered < @unanswered,
      do: fill(outbox, elites),
      else: :withheld
  end

  @doc "Takes elites that all go, after those that wait. Returns the messages to send now, and the outbox."
  @spec fill(t, [binary]) :: {[[binary]], t}
  def fill(outbox, elites), do: due(%{outbox | waiting: outbox.waiting ++ messages(elites)})

  @doc "Takes an answer. Returns the messages to send now, and the outbox."
  @spec answered(t) :: {[[binary]], t}
  def answered(outbox), do: due(%{outbox | unanswered: max(outbox.unanswered - 1, 0)})

  defp due(%{waiting: waiting, unanswered: unanswered} = outbox) do
    {now, later} = Enum.split(waiting, @unanswered - unanswered)
    {now, %{outbox | waiting: later, unanswered: unanswered + length(now)}}
  end
end
