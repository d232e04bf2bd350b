defmodule Sconce.Monitor do
  alias Sconce.{Error, Native, Options}
  alias Sconce.Monitor.{Catalogue, Metric, Names, Prometheus, Region, Trace, Vm}
  alias Sconce.Monitor.Snapshot.Histogram

  @metric [
    unit: [type: :string, default: "", doc: "Unit, as in `\"ms\"`; `\"ns\"` for times."],
    doc: [type: :string, default: "", doc: "Meaning, one sentence."],
    labels: [
      type: :keyword,
      default: [],
      doc: "Labels as in Prometheus, in any order, as in `[stage: \"battlefield\"]`."
    ]
  ]

  rows = fn metrics ->
    Enum.map_join(metrics, "\n", fn %{name: name, kind: kind, unit: unit, doc: doc} ->
      "| `#{name}` | #{kind} | #{unit} | #{doc} |"
    end)
  end

  @moduledoc """
  Counters, gauges and histograms of this VM and of an app, and the files by which other processes watch them.

  Native code counts decisions, requests, batches, training steps and the other metrics of the catalogue below, without
  a lock; a process of this application samples CPU, memory, cards and servings once a second. All of it goes on whether
  someone watches or not.

  The values lie in memory. Once a second what has changed is written to a file of the VM, and each run has a file of its
  own, so that neither a decision nor a training step waits for a disk. `mix sconce.monitor` draws the files in a terminal,
  reads nothing else, and still shows the last values of a VM that was killed. The files lie in
  `$XDG_STATE_HOME/sconce` or `~/.local/state/sconce`, which only this user can read; the settings `:monitor_dir` and
  `:monitor` of `Sconce.Config` name another folder, and turn the files off. A VM's file is about 1 MB and is deleted at
  its normal end; a run's is about 170 kB, and the latest hundred stay.

      iex> {:ok, games} = Sconce.Monitor.counter("doctest_games_total", doc: "Games that the app has played.")
      iex> Sconce.Monitor.add(games)
      iex> Sconce.Monitor.add(games, 2)
      iex> {:ok, values} = Sconce.Monitor.read()
      iex> values["doctest_games_total"]
      3

  ## Catalogue

  Times are counted in nanoseconds, and exported to Prometheus in seconds.

  | name | kind | unit | meaning |
  |---|---|---|---|
  #{rows.(Catalogue.native() ++ Catalogue.sampled())}

  These have labels: each serving of `Sconce.Serving` (`serving`), each member of a group of `Sconce.Leader` (`leader`, its
  name, and `leads`, the node that leads), each open `Sconce.Store` (`store`, its folder), each `Sconce.Bot` (`bot`), at most
  24 of each of the latter three, and each NVIDIA card (`device`):

  | name | kind | unit | meaning |
  |---|---|---|---|
  #{rows.(Catalogue.serving() ++ Catalogue.leader() ++ Catalogue.store() ++ Catalogue.bot() ++ Catalogue.device())}

  Values of cards were not tried on a card.

  The 24 busiest sessions have these, with the labels `session`, `owner` (its process) and `policy` (its backbone). The
  terminal, the page and records show them; Prometheus and `Sconce.Monitor.Events` do not get them, because each game
  would begin new series there.

  | name | kind | unit | meaning |
  |---|---|---|---|
  #{rows.(Catalogue.session())}
  """

  @typedoc "The value of a counter or a gauge (nil if it is unknown), or a distribution in the unit of its metric."
  @type value ::
          number
          | nil
          | %{
              count: non_neg_integer,
              mean: float | nil,
              p50: float | nil,
              p95: float | nil,
              p99: float | nil,
              p999: float | nil
            }

  @doc """
  Returns the catalogue of all metrics that Sconce itself has: `name`, `kind`, `unit` and `doc`.

      iex> Enum.find(Sconce.Monitor.catalogue(), &(&1.name == "sconce_decisions_total")).kind
      :counter
  """
  @spec catalogue() :: [%{name: String.t(), kind: atom, unit: String.t(), doc: String.t()}]
  defdelegate catalogue, to: Catalogue, as: :all

  @doc """
  Returns a counter of the app, a number that only grows. A second call with the same name returns the same counter.

  The name has letters, digits and `_`, as in Prometheus; all metrics of a name have one
  kind and one unit. Name with labels, unit and doc have 224 bytes together. A VM has room for 1,024 metrics: its own, seven for each serving and store,
  five for each leader and bot, four for each of at most 24 sessions, and those of the app.

  #{Options.docs(@metric)}

      iex> {:ok, counter} = Sconce.Monitor.counter("doctest_wins_total", labels: [stage: "battlefield"])
      iex> inspect(counter)
      ~S|#Sconce.Monitor.Metric<counter doctest_wins_total{stage="battlefield"}>|
  """
  @spec counter(String.t(), keyword) :: {:ok, Metric.t()} | {:error, Error.t()}
  def counter(name, opts \\ []), do: metric(:counter, name, opts)

  @doc """
  Returns a gauge of the app, a number that rises and falls. Its options are those of `counter/2`.

      iex> {:ok, gauge} = Sconce.Monitor.gauge("doctest_rating")
      iex> Sconce.Monitor.set(gauge, 1520.5)
      :ok
  """
  @spec gauge(String.t(), keyword) :: {:ok, Metric.t()} | {:error, Error.t()}
  def gauge(name, opts \\ []), do: metric(:gauge, name, opts)

  @doc """
  Returns a histogram of the app, of whole numbers from 0: quantiles are exact to one in 128. Its options are those of
  `counter/2`. A VM has room for sixteen of them.

      iex> {:ok, frames} = Sconce.Monitor.histogram("doctest_game_frames", unit: "frames")
      iex> for n <- [100, 200, 300], do: Sconce.Monitor.record(frames, n)
      iex> {:ok, values} = Sconce.Monitor.read()
      iex> {values["doctest_game_frames"].count, values["doctest_game_frames"].mean}
      {3, 200.0}
  """
  @spec histogram(String.t(), keyword) :: {:ok, Metric.t()} | {:error, Error.t()}
  def histogram(name, opts \\ []), do: metric(:histogram, name, opts)

  defp metric(kind, name, opts) do
    opts = Options.validate!(opts, @metric)

    (is_binary(name) and name =~ ~r/\A[a-zA-Z_][a-zA-Z0-9_]{0,99}\z/) ||
      Options.argument!("name", name, "letters, digits and _")

    for key <- [:unit, :doc] do
      String.valid?(opts[key]) || Options.argument!("option #{inspect(key)}", opts[key], "text")
    end

    labelled = name <> Prometheus.labels!(opts[:labels])

    Names.taking(name, kind, opts[:unit], fn ->
      with {:ok, %Region{ref: ref}} <- Vm.region(),
           {:ok, number} <- Native.monitor_metric(ref, kind, labelled, opts[:unit], opts[:doc]),
           do: {:ok, %Metric{ref: ref, number: number, kind: kind, name: labelled}}
    end)
  end

  @doc """
  Adds to a counter.

      iex> {:ok, counter} = Sconce.Monitor.counter("doctest_losses_total")
      iex> Sconce.Monitor.add(counter, 2)
      :ok
  """
  @spec add(Metric.t(), non_neg_integer) :: :ok
  def add(metric, n \\ 1)

  def add(%Metric{kind: :counter} = metric, n) when is_integer(n) and n in 0..0xFFFF_FFFF_FFFF,
    do: done!(Native.monitor_add(metric.ref, metric.number, n))

  def add(%Metric{kind: :counter}, n), do: Options.argument!("n", n, "a whole number from 0")
  def add(other, _n), do: Options.argument!("metric", other, "a counter")

  @doc """
  Sets a gauge, to nil if its value is unknown.

      iex> {:ok, gauge} = Sconce.Monitor.gauge("doctest_elo")
      iex> :ok = Sconce.Monitor.set(gauge, 1500)
      iex> Sconce.Monitor.set(gauge, nil)
      :ok
  """
  @spec set(Metric.t(), number | nil) :: :ok
  def set(%Metric{kind: :gauge} = metric, nil), do: update(metric, :set, nil)

  def set(%Metric{kind: :gauge} = metric, value) when is_number(value) do
    update(metric, :set, value / 1)
  rescue
    ArithmeticError -> Options.argument!("value", value, "a number that a float can hold")
  end

  def set(%Metric{kind: :gauge}, value), do: Options.argument!("value", value, "a number or nil")
  def set(other, _value), do: Options.argument!("metric", other, "a gauge")

  @doc """
  Counts a value in a histogram.

      iex> {:ok, histogram} = Sconce.Monitor.histogram("doctest_combo_hits")
      iex> Sconce.Monitor.record(histogram, 7)
      :ok
  """
  @spec record(Metric.t(), non_neg_integer) :: :ok
  def record(%Metric{kind: :histogram} = metric, value)
      when is_integer(value) and value in 0..0xFFFF_FFFF_FFFF_FFFF,
      do: done!(Native.monitor_record(metric.ref, metric.number, value))

  def record(%Metric{kind: :histogram}, value),
    do: Options.argument!("value", value, "a whole number from 0")

  def record(other, _value), do: Options.argument!("metric", other, "a histogram")

  defp update(metric, change, value),
    do: done!(Native.monitor_update(metric.ref, [{change, metric.number, value}]))

  defp done!(:ok), do: :ok
  defp done!({:error, error}), do: raise(error)

  @trace [
    to: [
      type: {:or, [:path, nil]},
      default: nil,
      doc: "File for all spans, as JSON that Perfetto and Chrome's trace viewer open."
    ]
  ]

  @doc """
  Calls a function, and returns its result with the spans of native threads meanwhile: calls from Elixir, decisions, ops,
  parts of training steps, loaders, servings.

  Spans of the whole VM are recorded, also those of other processes. Several traces can run at the same time. A span that
  began before the trace or has not ended with it is left out. All traces together keep about a million spans, 64 MiB. If
  the library of NVTX is found, each span is a range of it too, which Nsight Systems shows. The setting `:trace`
  (`SCONCE_TRACE`) names a file for a trace of the whole VM, written at its end.

  An exception of the function ends the trace. If the file cannot be written, the result is returned all the same, and
  the trace says why.

  #{Options.docs(@trace)}

      iex> {:ok, policy} = Sconce.Policy.init([embedding: {:vector, 4}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:categorical, 2}]], seed: 1)
      iex> {:ok, session} = Sconce.Session.open(policy)
      iex> {:ok, {{:ok, _decision}, trace}} = Sconce.Monitor.trace(fn -> Sconce.Session.act(session, [1.0, 2.0, 3.0, 4.0]) end)
      iex> Enum.find(trace.spans, &(&1.kind == :decision)).count
      1
  """
  @spec trace((() -> result), keyword) :: {:ok, {result, Trace.t()}} | {:error, Error.t()}
        when result: var
  def trace(fun, opts \\ []) do
    opts = Options.validate!(opts, @trace)
    is_function(fun, 0) || Options.argument!("fun", fun, "a function without arguments")

    with {:ok, handle} <- Native.monitor_trace() do
      try do
        result = fun.()
        {:ok, {result, traced(handle, opts[:to])}}
      after
        # Ends the trace of a function that raised.
        Native.monitor_trace_end(handle, false)
      end
    end
  end

  defp traced(handle, to) do
    path = to && Path.expand(to)
    {:ok, found} = Native.monitor_trace_end(handle, path != nil)
    trace = Trace.of(found)

    case path && Native.monitor_trace_write(handle, path) do
      nil -> trace
      :ok -> %{trace | path: path}
      {:error, error} -> %{trace | error: error}
    end
  end

  @doc """
  Returns all values of this VM by their names.

      iex> {:ok, values} = Sconce.Monitor.read()
      iex> values["sconce_panics_total"] >= 0
      true
  """
  @spec read() :: {:ok, %{String.t() => value}} | {:error, Error.t()}
  def read do
    with {:ok, slots} <- slots(),
         do: {:ok, Map.new(slots, &{&1.name, value(&1.value)})}
  end

  defp value(%Histogram{} = histogram) do
    at = &Histogram.quantile(histogram, &1)

    %{
      count: Histogram.count(histogram),
      mean: Histogram.mean(histogram),
      p50: at.(0.5),
      p95: at.(0.95),
      p99: at.(0.99),
      p999: at.(0.999)
    }
  end

  defp value(plain), do: plain

  @doc """
  Returns all values of this VM in the text format of Prometheus.

      iex> {:ok, text} = Sconce.Monitor.prometheus()
      iex> text =~ "# TYPE sconce_decision_seconds histogram"
      true
  """
  @spec prometheus() :: {:ok, String.t()} | {:error, Error.t()}
  def prometheus, do: with({:ok, slots} <- slots(), do: {:ok, Prometheus.text(slots)})

  defp slots, do: with({:ok, snapshot} <- Vm.snapshot(), do: {:ok, snapshot.slots})

  @doc """
  Returns the file in which other processes read the values of this VM, or nil if there is none.

      iex> file = Sconce.Monitor.file()
      iex> file == nil or String.ends_with?(file, ".vm")
      true
  """
  @spec file() :: Path.t() | nil
  def file, do: Vm.file()
end
