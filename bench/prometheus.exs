# Checks the text for Prometheus with the parser of its own client for Python, `prometheus_client`:
#
#     pip install prometheus_client==0.26.0
#     mix run prometheus.exs --python python3 | tee prometheus.txt
#
# A VM of its own has a serving with a hostile name, a session that acts meanwhile, and counters, gauges and histograms of an
# app whose labels and docs have quotes, backslashes, newlines, control characters and letters of many languages. Its endpoint
# has a free port, on which `peers/prometheus.py` runs: that script lists what it checks. The same labels in another order,
# and labels without a value, must count in one series. The app also asks for metrics that no scrape can hold beside those
# that exist: another kind or unit of a name, the names of a histogram's parts, and those of Sconce. Each must be an error.
# The status is 1 if a check fails.

defmodule PrometheusBench do
  alias Sconce.Bench.{Child, Machine, Output}
  alias Sconce.{Error, Monitor, Policy, Serving, Session}

  @boot_ms 60_000
  @switches [python: :string]

  # Values of labels, at most 100 bytes each.
  @hostile [
    ~S(say "hi"),
    ~S(C:\temp\new),
    "ends with \\",
    "two\nlines",
    ~S(two\nlines),
    ~S("}),
    ~S(x",le="1),
    ~S({le="+Inf"} 3),
    "# TYPE a counter",
    "a, b = c",
    "  blanks  ",
    "tab\tand\rreturn",
    "a\0b\e[2Jc",
    "Ünïcödé → 日本語 🎮",
    "\u202Eright to left",
    "lines\u2028of\u0085others",
    "NaN",
    String.duplicate("é", 50)
  ]

  @docs [
    "",
    ~S(Has "quotes" and a \ too.),
    ~S(Has one " only.),
    "Has\ntwo lines.",
    "Has \\n and ends with \\",
    "# HELP of nothing",
    "  Größe → 大  "
  ]

  @name :"a \"b\" \\ c\nd {le=\"1\"} → 🎮"

  # This script is also the VM with the endpoint.
  def main(["--app", dir]), do: app(dir)

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    dir = Path.join(System.tmp_dir!(), "sconce-prometheus-#{System.pid()}")
    File.mkdir_p!(dir)
    System.put_env("SCONCE_MONITOR_DIR", Path.join(dir, "state"))
    IO.puts(Output.header(Machine.describe()))

    status =
      try do
        checked(dir, opts)
      after
        File.rm_rf!(dir)
      end

    if status != 0, do: System.halt(1)
  end

  defp checked(dir, opts) do
    child = Child.script(__ENV__.file, ["--app", dir])

    try do
      port = wait(Path.join(dir, "port"), child, @boot_ms)
      said = File.read!(Path.join(dir, "said"))
      IO.write(said)
      checker = Path.join(__DIR__, "peers/prometheus.py")
      expected = Path.join(dir, "expected.json")
      arguments = [checker, "http://127.0.0.1:#{port}", "--expect", expected]
      {output, status} = System.cmd(opts[:python] || "python3", arguments, stderr_to_stdout: true)
      IO.write(output)
      if said =~ "WRONG", do: 1, else: status
    after
      Child.kill(child)
    end
  end

  defp wait(file, child, ms) do
    case File.read(file) do
      {:ok, text} -> text
      _not_yet when ms <= 0 -> raise "no endpoint: #{inspect(Child.kill(child))}"
      _not_yet -> Process.sleep(10) && wait(file, child, ms - 10)
    end
  end

  # The VM with the endpoint

  defp app(dir) do
    {:ok, _apps} = Application.ensure_all_started(:sconce)
    session = served()
    expected = metrics() ++ same()
    # The next sample has the metrics of the serving.
    Process.sleep(1_500)
    File.write!(Path.join(dir, "said"), collisions())
    File.write!(Path.join(dir, "expected.json"), Output.json(expected))
    {:ok, endpoint} = Monitor.Endpoint.start_link(port: 0)
    {:ok, port} = Monitor.Endpoint.port(endpoint)
    Machine.value!(written(Path.join(dir, "port"), "#{port}"))
    act(session)
  end

  # The file appears whole.
  defp written(path, text) do
    with :ok <- File.write(path <> ".new", text),
         :ok <- File.rename(path <> ".new", path),
         do: {:ok, path}
  end

  defp served do
    heads = [fire: {:bernoulli, 1}]
    spec = [embedding: {:vector, 4}, backbone: :mlp, hidden_sizes: [8], heads: heads]
    {:ok, policy} = Policy.init(spec, seed: 1)
    {:ok, serving} = Serving.start_link(policy: policy, name: @name)
    {:ok, served} = Serving.open(serving, seed: 1)
    for _frame <- 1..100, do: {:ok, _decision} = Session.act(served, [1.0, 2.0, 3.0, 4.0])
    {:ok, session} = Session.open(policy, seed: 1)
    session
  end

  # Its counters grow while the text is read.
  defp act(session) do
    {:ok, _decision} = Session.act(session, [1.0, 2.0, 3.0, 4.0])
    Process.sleep(5)
    act(session)
  end

  # Returns the samples that the text must have.
  defp metrics do
    for {text, n} <- Enum.with_index(@hostile, 1), part <- samples(text, n), do: part
  end

  defp samples(text, n) do
    doc = Enum.at(@docs, rem(n, length(@docs)))
    opts = [labels: [text: text, n: n], doc: doc]
    labels = %{"text" => text, "n" => "#{n}"}
    {:ok, counter} = Monitor.counter("bench_hostile_total", opts)
    {:ok, gauge} = Monitor.gauge("bench_hostile", opts)
    :ok = Monitor.add(counter, n)
    value = -1.5e-300 * n
    :ok = Monitor.set(gauge, value)

    [
      %{name: "bench_hostile_total", labels: labels, value: n},
      %{name: "bench_hostile", labels: labels, value: value}
    ] ++ histogram(n, opts, labels)
  end

  # A VM has room for sixteen histograms.
  defp histogram(n, opts, labels) when n <= 8 do
    {:ok, histogram} = Monitor.histogram("bench_hostile_seconds", [unit: "ns"] ++ opts)
    times = [0, 1, 1_023, 1_024, 5_000_000, 0xFFFF_FFFF_FFFF]
    for ns <- times, do: :ok = Monitor.record(histogram, ns)
    part = &%{name: "bench_hostile_seconds_#{&1}", labels: Map.merge(labels, &2), value: &3}

    [
      part.("count", %{}, 6),
      part.("sum", %{}, Enum.sum(times) / 1.0e9),
      part.("bucket", %{"le" => "1.024e-6"}, 3),
      part.("bucket", %{"le" => "2.048e-6"}, 4),
      part.("bucket", %{"le" => "+Inf"}, 6)
    ]
  end

  defp histogram(_n, _opts, _labels), do: []

  # Different spellings of one series.
  defp same do
    for {labels, n} <- [
          {[a: 1, b: "x"], 1},
          {[b: :x, a: "1"], 2},
          {[a: 1, b: "x", c: ""], 4},
          {[], 8},
          {[a: ""], 16}
        ] do
      {:ok, counter} = Monitor.counter("bench_same_total", labels: labels)
      :ok = Monitor.add(counter, n)
    end

    [
      %{name: "bench_same_total", labels: %{"a" => "1", "b" => "x"}, value: 7},
      %{name: "bench_same_total", labels: %{}, value: 24}
    ]
  end

  # Metrics that the format cannot have beside those before.
  defp collisions do
    for {kind, name, opts} <- [
          {:gauge, "bench_hostile_total", [labels: [kind: "other"]]},
          {:histogram, "bench_hostile", [labels: [kind: "other"]]},
          {:histogram, "bench_hostile_seconds", [labels: [unit: "other"]]},
          {:counter, "bench_hostile_seconds_count", []},
          {:gauge, "bench_hostile_seconds_sum", []},
          {:counter, "bench_hostile_seconds_bucket", [labels: [a: 1]]},
          {:counter, "sconce_decision_seconds_count", []},
          {:gauge, "sconce_serving_requests_total", [labels: [serving: "mine"]]}
        ],
        into: "" do
      case apply(Monitor, kind, [name, opts]) do
        {:error, %Error{}} -> "refused      #{kind} #{name}, #{inspect(opts)}\n"
        {:ok, _metric} -> "WRONG: there is a #{kind} #{name}, #{inspect(opts)}\n"
      end
    end
  end
end

PrometheusBench.main(System.argv())
