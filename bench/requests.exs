# Measures what the monitor costs a `Sconce.Serving`, and whether it counts exactly:
#
#     mix run requests.exs | tee requests.txt                  # a million requests in each VM, five rounds
#     mix run requests.exs --policy small --requests 3000000   # the shortest steps, of which counting takes the largest share
#     mix run requests.exs --requests 100000 --rounds 1 --lane inline
#
# Each row is a VM of its own, in which as many processes as `--sessions`, each with its own session, send their requests one
# after the other. The rows of a round follow each other, and the next round begins with another one:
#
#   off      SCONCE_MONITOR=0: counted in memory, and no file
#   on       a file of the VM, written once a second
#   watched  also `mix sconce.monitor --vm PID` in a pseudo-terminal, which draws once a second, and an endpoint whose text for
#            Prometheus is read once a second
#
# Times are those of whole calls, and do not decide about the status. The ratios are medians over the rounds of the ratio of
# two rows of one round. `cpu` is the CPU time of the VM itself, and `view` that of the view, while the requests ran: on a
# machine whose cores are all in use, the view takes theirs.
#
# The status is 1 unless the counters are exact. In each VM the monitor must count as many requests, answers, decisions and
# times of requests as the processes have sent, those before the measurement included, and no refused or late one; so must
# the serving itself, the file, and the text for Prometheus. No earlier text has fewer requests than the one before it. A VM
# without a file must have none, and a file must be gone after the normal end of its VM. The view must go on drawing.

for name <- ~w(latency policies), do: Code.require_file("#{name}.exs", __DIR__)

defmodule Requests do
  alias Sconce.Bench.{Child, Footprint, Frames, Machine, Output, Viewer}
  alias Sconce.{Figures, Frame, Monitor, Policy, Serving, Session}
  alias Sconce.Monitor.Snapshot

  @defaults [requests: 1_000_000, sessions: 64, rounds: 5, policy: "mlp", lane: "worker"]
  @switches [requests: :integer, sessions: :integer, rounds: :integer] ++
              [policy: :string, lane: :string]
  @arms ~w(off on watched)
  # Requests of each session before the measurement.
  @warm 200
  @boot_ms 60_000
  @run_ms 3_600_000
  # Samples and files are written once a second.
  @settle_ms 10_000
  @percents [50, 99]

  @columns [
    {"round", 5, :right},
    {"monitor", 7, :left},
    {"lane", 6, :left},
    {"req/s", 9, :right},
    {"p50 us", 8, :right},
    {"p99 us", 8, :right},
    {"cpu s", 7, :right},
    {"view s", 6, :right},
    {"peak MB", 7, :right},
    {"counted", 0, :left}
  ]

  # This script is also the VM with the serving.
  def main(["--serve", dir | args]), do: serve(dir, options(args))

  def main(args) do
    opts = options(args)
    {:ok, _apps} = Application.ensure_all_started(:inets)
    dir = Path.join(System.tmp_dir!(), "sconce-requests-#{System.pid()}")
    IO.puts(Output.header(Machine.describe()))
    sent = Figures.grouped(sent(opts))
    IO.puts("#{sent} requests of #{opts.sessions} sessions in each VM, policy #{opts.policy}\n")
    IO.puts(Output.line(@columns, for({title, _width, _side} <- @columns, do: title)))

    wrong =
      try do
        rounds = for round <- 1..opts.rounds, do: round(round, dir, opts)
        ratios(rounds)
        for arms <- rounds, {_arm, found} <- arms, wrong <- found.wrong, do: wrong
      after
        File.rm_rf!(dir)
      end

    if wrong != [], do: System.halt(1)
  end

  defp options(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    @defaults |> Keyword.merge(opts) |> Map.new()
  end

  defp arguments(opts),
    do: for({name, value} <- opts, part <- ["--#{name}", "#{value}"], do: part)

  # All sessions send the same number.
  defp each(opts), do: max(div(opts.requests, opts.sessions), 1)
  defp sent(opts), do: opts.sessions * (@warm + each(opts))

  defp round(round, dir, opts) do
    {later, first} = Enum.split(@arms, rem(round - 1, length(@arms)))

    for arm <- first ++ later, into: %{} do
      here = Path.join(dir, "#{round}-#{arm}")
      found = measured(arm, here, opts)
      IO.puts(line(round, arm, found))
      for wrong <- found.wrong, do: IO.puts("WRONG: round #{round}, #{arm}: #{wrong}")
      {arm, found}
    end
  end

  defp line(round, arm, found) do
    times = Enum.map(found.times, &Latency.cell(&1, :us))
    cpu = for seconds <- [found.cpu_s, found.view_s], do: seconds(seconds)
    peak = if found.peak, do: Figures.grouped(div(found.peak, 1_000_000)), else: "-"
    counted = if found.wrong == [], do: "all", else: "WRONG"
    cells = ["#{round}", arm, found.lane, Figures.grouped(round(found.rate))]
    Output.line(@columns, cells ++ times ++ cpu ++ [peak, counted <> seen(found)])
  end

  defp seen(%{scrapes: [_ | _] = scrapes, pictures: n}),
    do: ", #{length(scrapes)} texts, #{Figures.counted(n, "picture")}"

  defp seen(_found), do: ""

  defp seconds(nil), do: "-"
  defp seconds(s), do: :erlang.float_to_binary(s / 1, decimals: 2)

  defp ratios(rounds) do
    IO.puts("\nmedian ratio        req/s     p50     p99")

    for {arm, base} <- [{"on", "off"}, {"watched", "off"}, {"watched", "on"}] do
      cells =
        for value <- [& &1.rate, &hd(&1.times), &List.last(&1.times)] do
          ratio = median(for arms <- rounds, do: value.(arms[arm]) / value.(arms[base]))
          String.pad_leading(:erlang.float_to_binary(ratio, decimals: 3), 8)
        end

      IO.puts(String.pad_trailing("#{arm} / #{base}", 17) <> Enum.join(cells))
    end
  end

  defp median(values) do
    sorted = Enum.sort(values)
    n = length(sorted)
    (Enum.at(sorted, div(n - 1, 2)) + Enum.at(sorted, div(n, 2))) / 2
  end

  # One VM

  defp measured(arm, dir, opts) do
    File.mkdir_p!(dir)
    state = Path.join(dir, "state")
    setting = if arm == "off", do: "0", else: "1"
    env = "export SCONCE_MONITOR=#{setting} SCONCE_MONITOR_DIR='#{state}'"
    child = Child.script(__ENV__.file, ["--serve", dir | arguments(opts)], limit: env)

    try do
      port = wait(dir, "ready", child, @boot_ms)
      viewer = if arm == "watched", do: viewer(child, state)
      found = if viewer, do: watched(dir, child, viewer, port), else: ran(dir, child)
      last = scrape(port)
      say(dir, "bye")
      %{status: status, output: output} = Child.await(child, @boot_ms)
      if status != 0, do: raise("#{Child.ending(status)}: #{output}")
      %{found | wrong: wrong(arm, found, last, state, opts)}
    after
      Child.signal(child, "KILL")
    end
  end

  defp viewer(child, state) do
    {:ok, viewer} = Viewer.mix(~w(sconce.monitor --vm #{child.os_pid} --dir) ++ [state])

    case Viewer.shows(viewer, "VM #{child.os_pid}", @boot_ms) do
      :ok -> viewer
      {:error, reason} -> raise "no view: #{reason}"
    end
  end

  defp ran(dir, child) do
    say(dir, "go")
    dir |> wait("result", child, @run_ms) |> :erlang.binary_to_term() |> Map.merge(%{wrong: []})
  end

  defp watched(dir, child, viewer, port) do
    [cpu, pictures] = [Viewer.cpu_seconds(viewer), Viewer.pictures(viewer)]
    reader = Task.async(fn -> scrapes(port, []) end)
    found = ran(dir, child)
    send(reader.pid, :enough)
    view = Viewer.cpu_seconds(viewer)
    pictures = drawn(viewer, pictures, @settle_ms)
    Viewer.kill(viewer)
    scrapes = Task.await(reader, @boot_ms)
    Map.merge(found, %{view_s: view && view - cpu, pictures: pictures, scrapes: scrapes})
  end

  # Waits for the first picture if the requests took less than a second.
  defp drawn(viewer, before, ms) do
    new = Viewer.pictures(viewer) - before
    if new > 0 or ms <= 0, do: new, else: Process.sleep(50) && drawn(viewer, before, ms - 50)
  end

  # The numbers of requests in the text, once a second.
  defp scrapes(port, before) do
    numbers = [scrape(port) | before]

    receive do
      :enough -> Enum.reverse(numbers)
    after
      1_000 -> scrapes(port, numbers)
    end
  end

  defp scrape(port) do
    {:ok, {{_version, 200, _reason}, _head, text}} =
      :httpc.request(:get, {~c"http://127.0.0.1:#{port}/metrics", []}, [], body_format: :binary)

    [_, n] = Regex.run(~r/^sconce_requests_total (\d+)$/m, text)
    String.to_integer(n)
  end

  # Sentences about each check that fails.
  defp wrong(arm, found, last, state, opts) do
    sent = sent(opts)

    counted =
      for {where, numbers} <- found.counted, {name, n} <- numbers, n != expected(name, sent) do
        "#{where} has #{inspect(n)} in #{name}, and #{sent} were sent"
      end

    texts = Map.get(found, :scrapes, []) ++ [last]

    counted ++
      if(last == sent, do: [], else: ["the text for Prometheus has #{last} of #{sent}"]) ++
      if(texts == Enum.sort(texts), do: [], else: ["the texts fall: #{inspect(texts)}"]) ++
      files(arm, found, state) ++ views(arm, found)
  end

  defp expected(name, sent), do: if(name =~ ~r/busy|late|missed|panics/, do: 0, else: sent)

  defp files("off", found, state) do
    left = if File.exists?(state), do: File.ls!(state), else: []
    if found.file == nil and left == [], do: [], else: ["there is a file: #{inspect(left)}"]
  end

  defp files(_on, found, state) do
    there = if found.file, do: [], else: ["the VM has no file"]
    left = File.ls!(state)
    there ++ if(left == [], do: [], else: ["left at the VM's end: #{inspect(left)}"])
  end

  defp views("watched", %{pictures: 0}), do: ["the view has drawn nothing"]
  defp views("watched", %{view_s: nil}), do: ["the view has ended"]
  defp views(_arm, _found), do: []

  # Files by which this VM and that of the serving wait for each other; they appear whole.

  defp say(dir, name, text \\ "") do
    path = Path.join(dir, name)
    File.write!(path <> ".new", text)
    File.rename!(path <> ".new", path)
  end

  defp wait(dir, name, child, ms) do
    cond do
      File.exists?(Path.join(dir, name)) -> File.read!(Path.join(dir, name))
      ms <= 0 -> raise "no #{name}: #{inspect(Child.kill(child))}"
      ended = Child.ended(child, 20) -> raise "#{Child.ending(ended.status)}: #{ended.output}"
      true -> wait(dir, name, child, ms - 20)
    end
  end

  # The VM with the serving

  defp serve(dir, opts) do
    {:ok, _apps} = Application.ensure_all_started(:sconce)
    {policy, frames} = policy(opts.policy)
    lane = Enum.find([:auto, :inline, :worker], &(to_string(&1) == opts.lane)) || raise "--lane"
    {:ok, serving} = Serving.start_link(policy: policy, name: :requests, lane: lane)
    {:ok, info} = Serving.info(serving)
    {:ok, endpoint} = Monitor.Endpoint.start_link(port: 0)
    {:ok, port} = Monitor.Endpoint.port(endpoint)
    callers = for i <- 1..opts.sessions, do: caller(info, i, frames, each(opts))
    for _caller <- callers, do: receive(do: (:warm -> :ok))
    say(dir, "ready", "#{port}")
    await(dir, "go")
    [cpu, start] = [Viewer.seconds(System.pid()), System.monotonic_time(:nanosecond)]
    for %{pid: pid} <- callers, do: send(pid, :go)
    times = callers |> Task.await_many(:infinity) |> Enum.concat()
    seconds = (System.monotonic_time(:nanosecond) - start) / 1.0e9
    cpu = Viewer.seconds(System.pid()) - cpu
    peak = Footprint.peak()

    result = %{
      lane: "#{info.lane}",
      rate: length(times) / seconds,
      times: times |> Enum.sort() |> Latency.percentiles(@percents),
      cpu_s: cpu,
      view_s: nil,
      peak: peak,
      file: Monitor.file(),
      counted: counted(serving, sent(opts), @settle_ms)
    }

    say(dir, "result", :erlang.term_to_binary(result))
    # The VM deletes its file when the script ends.
    await(dir, "bye")
  end

  defp await(dir, name),
    do: File.exists?(Path.join(dir, name)) || (Process.sleep(10) && await(dir, name))

  defp policy("small") do
    heads = [fire: {:bernoulli, 1}]
    spec = [embedding: {:vector, 4}, backbone: :mlp, hidden_sizes: [8], heads: heads]
    {:ok, policy} = Policy.init(spec, seed: 1)
    {policy, List.to_tuple(for n <- 1..600, do: [n / 600, 0.5, -0.5, 1.0])}
  end

  defp policy(name) do
    name = Enum.find(Policies.names(), &(to_string(&1) == name)) || raise "--policy"
    {structs, _origin} = Frames.sequence()
    rows = for frame <- Tuple.to_list(structs), do: Machine.value!(Frame.pack(frame))
    {Policies.init!(name), List.to_tuple(rows)}
  end

  # Answers of no request are left out: each call must return a decision.
  defp caller(serving, i, frames, calls) do
    parent = self()

    Task.async(fn ->
      {:ok, session} = Serving.open(serving, seed: i)
      for n <- 1..@warm, do: {:ok, _decision} = Session.act(session, at(frames, i + n))
      times = Latency.new(calls)
      send(parent, :warm)
      receive do: (:go -> :ok)

      for n <- 1..calls do
        start = System.monotonic_time(:nanosecond)
        {:ok, _decision} = Session.act(session, at(frames, i + n))
        Latency.add(times, System.monotonic_time(:nanosecond) - start)
      end

      Latency.sorted(times)
    end)
  end

  defp at(frames, n), do: elem(frames, rem(n, tuple_size(frames)))

  # The numbers of the monitor, of the serving and of the file. Those of the sample and of the file are written once a second.
  defp counted(serving, sent, ms) do
    {:ok, values} = Monitor.read()
    {:ok, stats} = Serving.stats(serving)
    count = &(values[&1] && values[&1].count)

    counted = %{
      "the monitor" => %{
        "sconce_requests_total" => values["sconce_requests_total"],
        "sconce_requests_busy_total" => values["sconce_requests_busy_total"],
        "sconce_deadlines_missed_total" => values["sconce_deadlines_missed_total"],
        "sconce_panics_total" => values["sconce_panics_total"],
        "sconce_decisions_total" => values["sconce_decisions_total"],
        "sconce_request_seconds" => count.("sconce_request_seconds"),
        "sconce_request_wait_seconds" => count.("sconce_request_wait_seconds"),
        "sconce_serving_requests_total" =>
          values[~S(sconce_serving_requests_total{serving=":requests"})],
        "sconce_serving_answered_total" =>
          values[~S(sconce_serving_answered_total{serving=":requests"})],
        "sconce_serving_late_total" => values[~S(sconce_serving_late_total{serving=":requests"})]
      },
      "the serving" => %{
        "requests" => stats.requests,
        "answered" => stats.answered,
        "late" => stats.late,
        "busy" => stats.busy
      },
      "the file" => file(Monitor.file())
    }

    exact? =
      Enum.all?(for {_where, all} <- counted, {name, n} <- all, do: n == expected(name, sent))

    if exact? or ms <= 0,
      do: counted,
      else: Process.sleep(100) && counted(serving, sent, ms - 100)
  end

  defp file(nil), do: %{}

  defp file(path) do
    {:ok, snapshot} = Snapshot.open(path)
    times = Snapshot.value(snapshot, "sconce_request_seconds")

    for name <- ~w(sconce_requests_total sconce_decisions_total),
        into: %{"sconce_request_seconds" => times && times.count},
        do: {name, Snapshot.value(snapshot, name)}
  end
end

Requests.main(System.argv())
