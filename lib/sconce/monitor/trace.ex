defmodule Sconce.Monitor.Trace do
  @moduledoc """
  What `Sconce.Monitor.trace/2` found.

  | field | meaning |
  |---|---|
  | `time_us` | time of the function |
  | `device_time_us` | part of it in which a device computed for at least one thread: ops and decisions on a CPU, work between two events of a card |
  | `bytes` | bytes that ops read and wrote: their inputs, outputs and gradients, not what their caches and packed weights hold |
  | `threads` | threads and cards that had spans |
  | `spans` | sums by kind and name, the longest first: `kind`, `name`, `count`, `time_us`, `bytes` |
  | `lost` | spans beyond the first million, which were not kept |
  | `nvtx` | the library that received the spans as ranges of NVTX, nil if none is found |
  | `path` | the file with all spans, nil without one |
  | `error` | why the file could not be written, nil otherwise |

  Times of several threads, and of a span within a span, lie side by side, so that `time_us` of the spans can add up to
  more than the time of the function. The kinds of spans:

  | kind | meaning |
  |---|---|
  | `:call` | a call from Elixir, on its own scheduler |
  | `:job` | work of a call on a native thread |
  | `:step` | a part of a training step, a rollout, a serving or a loader |
  | `:wait` | a wait for another thread |
  | `:decision` | a decision of one or many games |
  | `:forward`, `:backward` | a pass of an op, such as `matmul::Product` |
  | `:shards` | shards of the work of another thread |
  | `:launch` | launches of an op on a card, which computes later |

  `to_string/1` returns a table. Spans of cards ran on an H100; ranges of NVTX were not tried on a card.
  """

  alias Sconce.Figures
  alias Sconce.Run.Estimate

  @enforce_keys [:time_us, :device_time_us, :bytes, :threads, :spans, :lost, :nvtx]
  defstruct @enforce_keys ++ [:path, :error]

  @type span :: %{
          kind:
            :call | :job | :step | :wait | :decision | :forward | :backward | :shards | :launch,
          name: String.t(),
          count: pos_integer,
          time_us: float,
          bytes: non_neg_integer
        }
  @type t :: %__MODULE__{
          time_us: float,
          device_time_us: float,
          bytes: non_neg_integer,
          threads: non_neg_integer,
          spans: [span],
          lost: non_neg_integer,
          nvtx: String.t() | nil,
          path: Path.t() | nil,
          error: Sconce.Error.t() | nil
        }

  @kinds Map.new(
           ~w(call job step wait decision forward backward shards launch)a,
           &{Atom.to_string(&1), &1}
         )

  # Rows of the table.
  @rows 20

  @doc false
  @spec of(map) :: t
  def of(found) do
    spans =
      for span <- found.spans do
        %{span | kind: Map.fetch!(@kinds, span.kind)}
        |> Map.delete(:time)
        |> Map.put(:time_us, span.time / 1000)
      end

    %__MODULE__{
      time_us: found.time / 1000,
      device_time_us: found.device_time / 1000,
      bytes: found.bytes,
      threads: found.threads,
      spans: spans,
      lost: found.lost,
      nvtx: found.nvtx
    }
  end

  @doc false
  @spec summary(t) :: String.t()
  def summary(%__MODULE__{} = trace) do
    count = trace.spans |> Enum.map(& &1.count) |> Enum.sum()
    device = "a device computed in #{percent(trace.device_time_us, trace.time_us)} of it"
    spans = "#{Figures.counted(count, "span")} of #{Figures.counted(trace.threads, "thread")}"
    "#{time(trace.time_us)}, #{device}, #{Figures.size(trace.bytes)} in ops, #{spans}"
  end

  @doc false
  @spec text(t) :: String.t()
  def text(%__MODULE__{} = trace) do
    {shown, rest} = Enum.split(trace.spans, @rows)
    head = row({"kind", "name", "count", "time", "of all", "bytes"})
    rows = for span <- shown, do: row(columns(span, trace.time_us))
    more = if rest == [], do: [], else: ["and #{Figures.counted(length(rest), "other row")}"]
    Estimate.text([summary(trace), head, rows, more, notes(trace)])
  end

  defp columns(span, time_us) do
    {span.kind, span.name, Figures.grouped(span.count), time(span.time_us),
     percent(span.time_us, time_us), if(span.bytes > 0, do: Figures.size(span.bytes), else: "")}
  end

  defp row({kind, name, count, time, share, bytes}) do
    String.pad_trailing("#{kind}", 9) <>
      String.pad_trailing(String.slice(name, 0, 34), 35) <>
      Enum.map_join([{count, 9}, {time, 10}, {share, 7}, {bytes, 10}], fn {text, width} ->
        String.pad_leading(text, width)
      end)
  end

  defp notes(trace) do
    [
      if(trace.lost > 0, do: "#{Figures.counted(trace.lost, "span")} had no room"),
      if(trace.path, do: "all spans: #{trace.path}"),
      if(trace.error, do: "no file: #{Exception.message(trace.error)}")
    ]
    |> Enum.reject(&is_nil/1)
  end

  defp time(us) when us < 1.0e3, do: "#{Float.round(us / 1, 1)} us"
  defp time(us), do: Estimate.duration(us / 1.0e6)

  defp percent(_part, whole) when whole <= 0, do: "-"
  defp percent(part, whole), do: "#{round(100 * part / whole)} %"

  defimpl Inspect do
    def inspect(trace, _opts), do: "#Sconce.Monitor.Trace<#{Sconce.Monitor.Trace.summary(trace)}>"
  end

  defimpl String.Chars do
    def to_string(trace), do: Sconce.Monitor.Trace.text(trace)
  end
end
