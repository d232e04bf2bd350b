defmodule Sconce.Evolve.Outbox do
  @moduledoc false
  # Elites on their way to another island: in messages of limited bytes, of which few wait for an answer. Migrants that find
  # no room are withheld: they stay in the archive, and later ones are drawn anew. All elites for a new island wait here.

  # Bytes of a message, unless a single elite has more.
  @max_bytes 1_048_576
  # Messages without an answer at most.
  @unanswered 4
  # Milliseconds after which messages without an answer count as lost: a connection that was cut for a moment loses them.
  @lost_ms 60_000

  defstruct waiting: [], unanswered: 0, heard_ms: nil

  @typedoc "`waiting` are messages in their order; `heard_ms` is the time of the latest answer, or of the first message."
  @type t :: %__MODULE__{
          waiting: [[binary]],
          unanswered: non_neg_integer,
          heard_ms: integer | nil
        }

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
  @spec offer(t, [binary], integer) :: {[[binary]], t} | :withheld
  def offer(outbox, elites, now_ms \\ now_ms()) do
    %{waiting: waiting, unanswered: unanswered} = outbox = unless_lost(outbox, now_ms)

    if waiting == [] and unanswered < @unanswered,
      do: fill(outbox, elites, now_ms),
      else: :withheld
  end

  defp unless_lost(%{heard_ms: heard_ms} = outbox, now_ms)
       when is_integer(heard_ms) and now_ms - heard_ms > @lost_ms,
       do: %{outbox | unanswered: 0, heard_ms: nil}

  defp unless_lost(outbox, _now_ms), do: outbox

  defp now_ms, do: System.monotonic_time(:millisecond)

  @doc "Takes elites that all go, after those that wait. Returns the messages to send now, and the outbox."
  @spec fill(t, [binary], integer) :: {[[binary]], t}
  def fill(outbox, elites, now_ms \\ now_ms()),
    do: due(%{outbox | waiting: outbox.waiting ++ messages(elites)}, now_ms)

  @doc "Takes an answer. Returns the messages to send now, and the outbox."
  @spec answered(t, integer) :: {[[binary]], t}
  def answered(outbox, now_ms \\ now_ms()) do
    unanswered = max(outbox.unanswered - 1, 0)
    due(%{outbox | unanswered: unanswered, heard_ms: if(unanswered > 0, do: now_ms)}, now_ms)
  end

  defp due(%{waiting: waiting, unanswered: unanswered} = outbox, now_ms) do
    {now, later} = Enum.split(waiting, @unanswered - unanswered)
    heard_ms = if now == [], do: outbox.heard_ms, else: outbox.heard_ms || now_ms
    {now, %{outbox | waiting: later, unanswered: unanswered + length(now), heard_ms: heard_ms}}
  end
end
