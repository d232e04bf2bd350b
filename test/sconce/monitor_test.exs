defmodule Sconce.MonitorTest do
  # Not async: the folder of the files is a setting of the application.
  use ExUnit.Case, async: false

  import Sconce.Test.Scratch, only: [tmp_dir!: 1, elixir_until: 2, run: 4]

  alias Sconce.{Config, Corpus, Error, Monitor, Policy, Serving, Session, Trainer}
  alias Sconce.Monitor.{Catalogue, Region, RunFile, Snapshot, Vm}

  doctest Monitor
  doctest Monitor.Prometheus

  @spec_options [
    embedding: {:vector, 1},
    backbone: :mlp,
    hidden_sizes: [8],
    heads: [fire: {:bernoulli, 1}]
  ]

  setup do
    dir = tmp_dir!("monitor")
    before = Application.get_env(:sconce, :monitor_dir)
    Application.put_env(:sconce, :monitor_dir, dir)

    on_exit(fn ->
      if before,
        do: Application.put_env(:sconce, :monitor_dir, before),
        else: Application.delete_env(:sconce, :monitor_dir)
    end)

    [dir: dir]
  end

  defp values do
    {:ok, values} = Monitor.read()
    values
  end

  defp corpus(dir) do
    games = for _game <- 1..3, do: {List.duplicate(0.5, 60), List.duplicate(1, 60)}
    into = Path.join(dir, "corpus")
    {:ok, corpus} = Corpus.build({:vector, 1}, games, into: into, heads: [fire: {:bernoulli, 1}])
    corpus
  end

  defp trained(dir, opts \\ []) do
    Trainer.start_link(
      [corpus: corpus(dir), out: Path.join(dir, "run"), spec: Policy.Spec.new(@spec_options)] ++
        [batch_size: 2, window_size: 10, stride: 10, steps: 20, val_split: 0] ++ opts
    )
  end

  defp run_files(dir), do: dir |> Path.join("*.run") |> Path.wildcard()

  defp read!(path) do
    {:ok, snapshot} = Snapshot.open(path)
    {snapshot, Map.new(snapshot.slots, &{&1.name, &1.value})}
  end

  describe "the catalogue" do
    test "has distinct names, and native code counts its part of them" do
      names = Enum.map(Monitor.catalogue(), & &1.name)
      assert names == Enum.uniq(names)
      values = values()
      for %{name: name} <- Catalogue.native(), do: assert(is_map_key(values, name), name)
    end

    test "counts decisions, requests and late ones" do
      {:ok, policy} = Policy.init(Policy.Spec.new(@spec_options), seed: 1)
      {:ok, session} = Session.open(policy, seed: 1)
      before = values()
      for _frame <- 1..10, do: {:ok, _decision} = Session.act(session, [0.5])
      {:ok, _answers} = Session.act_many([{session, [0.5]}]) |> then(&{:ok, &1})
      after_ = values()
      grown = &(after_[&1] - before[&1])
      assert grown.("sconce_decisions_total") == 11
      times = "sconce_decision_seconds"
      assert after_[times].count - before[times].count == 11
      assert after_[times].p50 > 100

      {:ok, serving} = Serving.start_link(policy: policy, name: :monitored)
      {:ok, session} = Serving.open(serving, seed: 1)
      for _frame <- 1..5, do: {:ok, _decision} = Session.act(session, [0.5])
      {:error, %Error{kind: :deadline}} = Session.act(session, [0.5], deadline_ms: 0)
      last = values()
      assert last["sconce_requests_total"] - after_["sconce_requests_total"] == 6
      assert last["sconce_deadlines_missed_total"] - after_["sconce_deadlines_missed_total"] == 1
      assert last["sconce_request_seconds"].count - after_["sconce_request_seconds"].count == 5

      send(Vm, :sample)
      :sys.get_state(Vm)
      assert values()[~s(sconce_serving_requests_total{serving=":monitored"})] == 6
      assert values()["sconce_servings"] >= 1
      :ok = Serving.stop(serving)
      send(Vm, :sample)
      :sys.get_state(Vm)
      refute is_map_key(values(), ~s(sconce_serving_requests_total{serving=":monitored"}))
    end

    test "has servings with any name" do
      {:ok, policy} = Policy.init(Policy.Spec.new(@spec_options), seed: 1)

      names =
        for text <- ["日本", "\"", "🎮\u202E\n"], do: String.to_atom(String.duplicate(text, 60))

      servings =
        for name <- names do
          {:ok, serving} = Serving.start_link(policy: policy, name: name)
          serving
        end

      send(Vm, :sample)
      :sys.get_state(Vm)
      values = values()

      shown =
        for {name, value} when value == 0 <- values,
            {"sconce_serving_waiting", [{"serving", shown}]} <- [Snapshot.Slot.split(name)],
            do: String.slice(shown, 0, 3)

      assert [] == for(name <- names, do: name |> inspect() |> String.slice(0, 3)) -- shown
      assert values["sconce_servings"] >= 3
      for serving <- servings, do: :ok = Serving.stop(serving)
    end

    test "samples this machine" do
      send(Vm, :sample)
      :sys.get_state(Vm)
      values = values()
      assert values["sconce_memory_resident_bytes"] > 1.0e7
      assert values["sconce_memory_beam_bytes"] > 1.0e6
      assert values["sconce_memory_available_bytes"] > 1.0e6
      assert values["sconce_cpu_ratio"] in [nil] or values["sconce_cpu_ratio"] >= 0
    end

    test "counts bugs" do
      before = values()["sconce_panics_total"]
      {:error, %Error{kind: :panic}} = Sconce.Native.probe_panic("deliberate")
      assert values()["sconce_panics_total"] == before + 1
    end
  end

  describe "a metric of an app" do
    test "is one for each name, and knows its kind" do
      {:ok, counter} = Monitor.counter("monitor_test_total")
      {:ok, same} = Monitor.counter("monitor_test_total")
      for metric <- [counter, same, counter], do: :ok = Monitor.add(metric)
      assert values()["monitor_test_total"] == 3
      {:error, error} = Monitor.gauge("monitor_test_total")
      assert Exception.message(error) =~ "kind of monitor_test_total: expected counter, got gauge"

      {:ok, gauge} = Monitor.gauge("monitor_test_gauge", labels: [stage: ~s(a "b" \\ c)])
      assert values()[~S|monitor_test_gauge{stage="a \"b\" \\ c"}|] == nil
      Monitor.set(gauge, -0.25)
      assert values()[~S|monitor_test_gauge{stage="a \"b\" \\ c"}|] == -0.25
      Monitor.set(gauge, nil)
      assert values()[~S|monitor_test_gauge{stage="a \"b\" \\ c"}|] == nil
    end

    test "is the same with its labels in another order, and with an empty label" do
      for {labels, n} <- [
            {[b: "x", a: 1], 1},
            {[a: "1", b: :x], 2},
            {[b: "x", c: "", a: 1], 4},
            {[a: ""], 8},
            {[], 16}
          ] do
        {:ok, counter} = Monitor.counter("monitor_test_order_total", labels: labels)
        :ok = Monitor.add(counter, n)
      end

      assert values()[~S|monitor_test_order_total{a="1",b="x"}|] == 7
      assert values()["monitor_test_order_total"] == 24
      {:ok, text} = Monitor.prometheus()

      assert Regex.scan(~r/^monitor_test_order_total.*$/m, text) |> List.flatten() |> Enum.sort() ==
               ["monitor_test_order_total 24", ~S|monitor_test_order_total{a="1",b="x"} 7|]
    end

    test "shares its name with no other kind or unit, and with no part of a histogram" do
      {:ok, _} = Monitor.counter("monitor_test_taken_total", labels: [a: 1])
      {:ok, _} = Monitor.counter("monitor_test_taken_total", labels: [a: 2])
      {:ok, _} = Monitor.histogram("monitor_test_taken_seconds", unit: "ns")
      {:ok, _} = Monitor.gauge("monitor_test_other_count")

      for {kind, name, opts} <- [
            {:gauge, "monitor_test_taken_total", [labels: [a: 3]]},
            {:counter, "monitor_test_taken_total", [unit: "games"]},
            {:histogram, "monitor_test_taken_seconds", []},
            {:counter, "monitor_test_taken_seconds_count", []},
            {:gauge, "monitor_test_taken_seconds_sum", []},
            {:counter, "monitor_test_taken_seconds_bucket", [labels: [a: 1]]},
            {:histogram, "monitor_test_other", []},
            {:counter, "sconce_decision_seconds_count", []},
            {:counter, "sconce_requests_total", [labels: [mine: true]]},
            {:gauge, "sconce_serving_waiting", [labels: [serving: "mine"]]}
          ] do
        assert {:error, %Error{kind: :mismatch} = error} = apply(Monitor, kind, [name, opts])

        said = Exception.message(error)
        assert said =~ ~r/^monitor: ((kind|unit) of )?#{name}: expected /
      end

      # A metric that could not be made does not hold its name.
      too_long = [doc: String.duplicate("x", 300)]
      {:error, %Error{kind: :out_of_range}} = Monitor.counter("monitor_test_free", too_long)
      {:ok, _} = Monitor.gauge("monitor_test_free")

      names = for n <- 1..50, do: "monitor_test_raced_#{n}"

      for name <- names do
        kinds =
          [:counter, :gauge]
          |> Enum.map(&Task.async(fn -> elem(apply(Monitor, &1, [name]), 0) end))
          |> Task.await_many()

        assert Enum.sort(kinds) == [:error, :ok]
      end
    end

    test "is counted by many processes" do
      {:ok, counter} = Monitor.counter("monitor_test_many_total")
      add = fn -> for _n <- 1..1000, do: Monitor.add(counter, 2) end
      1..8 |> Enum.map(fn _n -> Task.async(add) end) |> Task.await_many()
      assert values()["monitor_test_many_total"] == 16_000
    end

    test "refuses what it cannot hold" do
      {:ok, counter} = Monitor.counter("monitor_test_refused_total")
      {:ok, gauge} = Monitor.gauge("monitor_test_refused")
      {:ok, histogram} = Monitor.histogram("monitor_test_refused_times", unit: "ns")

      for {call, text} <- [
            {fn -> Monitor.add(counter, -1) end, ~r/n: expected a whole number/},
            {fn -> Monitor.add(gauge, 1) end, ~r/metric: expected a counter/},
            {fn -> Monitor.set(gauge, :high) end, ~r/value: expected a number or nil/},
            {fn -> Monitor.set(gauge, Integer.pow(10, 400)) end, ~r/value: expected a number/},
            {fn -> Monitor.record(histogram, 1.5) end, ~r/value: expected a whole number/},
            {fn -> Monitor.record(counter, 1) end, ~r/metric: expected a histogram/},
            {fn -> Monitor.counter("with space") end, ~r/name: expected letters/},
            {fn -> Monitor.counter(:atom) end, ~r/name: expected letters/},
            {fn -> Monitor.counter("a", labels: [b: <<0xFF>>]) end, ~r/label b/},
            {fn -> Monitor.counter("a", labels: [le: 1]) end, ~r/label le/},
            {fn -> Monitor.counter("a", labels: [a: 1, a: 2]) end, ~r/different labels/},
            {fn -> Monitor.counter("a", unti: "ns") end, ~r/did you mean :unit/}
          ] do
        assert_raise ArgumentError, text, call
      end

      {:error, %Error{kind: :out_of_range}} =
        Monitor.counter("monitor_test_long", doc: String.duplicate("x", 300))
    end
  end

  describe "the text for Prometheus" do
    test "has a line for each value, and buckets that only grow" do
      {:ok, times} = Monitor.histogram("monitor_test_text_seconds", unit: "ns", doc: "A test.")
      for n <- [500, 1_500, 3_000_000, 90_000_000_000], do: Monitor.record(times, n)
      {:ok, text} = Monitor.prometheus()
      assert text =~ "# HELP monitor_test_text_seconds A test.\n"
      assert text =~ "# TYPE monitor_test_text_seconds histogram\n"

      buckets =
        for [_, bound, n] <-
              Regex.scan(~r/^monitor_test_text_seconds_bucket{le="(.*)"} (\d+)$/m, text),
            do: {bound, String.to_integer(n)}

      counts = Enum.map(buckets, &elem(&1, 1))
      assert counts == Enum.sort(counts)
      {:ok, sizes} = Monitor.histogram("monitor_test_sizes")
      for n <- [1, 2, 4, 8, 8], do: Monitor.record(sizes, n)
      {:ok, whole} = Monitor.prometheus()
      assert whole =~ ~s(monitor_test_sizes_bucket{le="7"} 3\n)
      assert whole =~ ~s(monitor_test_sizes_bucket{le="15"} 5\n)
      assert List.first(buckets) == {"1.024e-6", 1}
      assert List.last(buckets) == {"+Inf", 4}
      assert text =~ "monitor_test_text_seconds_count 4\n"
      assert text =~ "monitor_test_text_seconds_sum 90.003002\n"
    end
  end

  describe "the file of a run" do
    test "has its events, its curve and its end", %{dir: dir} do
      {:ok, run} = trained(dir)
      {:ok, report} = Trainer.await(run)
      [path] = run_files(dir)
      {snapshot, values} = read!(path)
      assert snapshot.state == :done
      assert values["start.steps"] == 20
      assert values["step.step"] == 20
      assert values["step.loss"] > 0
      assert snapshot.meta["kind"] == "imitation"
      assert snapshot.meta["out"] == Path.expand(report.out)
      assert Path.basename(path) == snapshot.meta["id"] <> ".run"
      curve = Enum.find(snapshot.slots, &(&1.name == "step.loss.curve"))
      assert length(curve.value.points) == 20
      assert Bitwise.band(File.stat!(path).mode, 0o777) == 0o600
    end

    test "says that it failed, and why", %{dir: dir} do
      options = [corpus: Path.join(dir, "none"), out: Path.join(dir, "run"), val_split: 0]
      {:ok, run} = Trainer.start_link(options ++ [spec: Policy.Spec.new(@spec_options)])
      {:error, error} = Trainer.await(run)
      {snapshot, values} = read!(hd(run_files(dir)))
      assert snapshot.state == :failed
      assert values["error"] == Exception.message(error)
    end

    test "is the same run with and without a file", %{dir: dir} do
      bits = fn sub, monitor ->
        Application.put_env(:sconce, :monitor, monitor)
        here = Path.join(dir, sub)
        {:ok, run} = trained(here)
        {:ok, _report} = Trainer.await(run)
        {:ok, policy} = Policy.load(Path.join(here, "run/last.safetensors"))
        {:ok, weights} = Policy.weights(policy)
        weights
      end

      watched = bits.("watched", true)
      alone = bits.("alone", false)
      Application.delete_env(:sconce, :monitor)
      assert watched == alone
      assert [_one] = run_files(dir)
    end

    test "goes on without a folder", %{dir: dir} do
      file = Path.join(dir, "file")
      File.write!(file, "no folder")
      Application.put_env(:sconce, :monitor_dir, file)
      {:ok, run} = trained(dir)
      assert {:ok, _report} = Trainer.await(run)
    end

    test "shows the last values of a VM that was killed", %{dir: dir} do
      # The folder of this test, in a VM of its own.
      script = """
      Application.put_env(:sconce, :monitor_dir, #{inspect(dir)})
      {:ok, _} = Application.ensure_all_started(:sconce)
      {:ok, games} = Sconce.Monitor.counter("killed_games_total")
      for n <- Stream.iterate(1, & &1 + 1) do
        Sconce.Monitor.add(games)
        # The file is written once a second.
        if n == 1000, do: Process.sleep(2_500)
        if n == 1000, do: File.write!(#{inspect(Path.join(dir, "due"))}, "")
        if n > 1000, do: Process.sleep(100)
      end
      """

      elixir_until(script, fn -> File.exists?(Path.join(dir, "due")) end)
      [path] = dir |> Path.join("*.vm") |> Path.wildcard()
      {snapshot, values} = read!(path)
      assert values["killed_games_total"] >= 1000
      assert Snapshot.life(snapshot) == :dead
    end

    test "of a VM goes at its normal end, and when a script halts", %{dir: dir} do
      script = """
      Application.put_env(:sconce, :monitor_dir, #{inspect(dir)})
      {:ok, _} = Application.ensure_all_started(:sconce)
      {:ok, _values} = Sconce.Monitor.read()
      true = File.exists?(Sconce.Monitor.file())
      """

      ebin = Application.app_dir(:sconce, "ebin")

      for ending <- ["", "System.stop(0); Process.sleep(:infinity)"] do
        {output, status} = run("elixir", ["-pa", ebin, "-e", script <> ending], dir, [])
        assert {status, Path.wildcard(Path.join(dir, "*.vm"))} == {0, []}, output
      end
    end

    test "of an ended run does not stay beyond a hundred others", %{dir: dir} do
      {:ok, region} = Region.open(Path.join(dir, "ffffffff.run"), %{kind: "test"}, 4)
      Region.beat(region, :done)
      ended = File.read!(region.path)
      Region.beat(region, :running)
      File.touch!(region.path, 1)

      for n <- 1..119 do
        path = Path.join(dir, String.pad_leading("#{n}", 8, "0") <> ".run")
        File.write!(path, ended)
        File.touch!(path, 1 + n)
      end

      File.write!(Path.join(dir, "installer.run"), "of others")
      {:ok, run} = trained(dir)
      {:ok, _report} = Trainer.await(run)
      # The running one is the oldest, and stays.
      assert File.exists?(region.path)
      refute File.exists?(Path.join(dir, "00000019.run"))
      assert File.exists?(Path.join(dir, "00000020.run"))
      assert File.exists?(Path.join(dir, "installer.run"))
    end

    test "tells the size that a run has after it has grown again", %{dir: dir} do
      short = %{event: :out_of_memory, step: 1200, micro_batch: 16, bytes: nil, memory_limit: nil}
      grown = %{event: :grown, step: 1216, micro_batch: 32}
      file = RunFile.open("trainer", Path.join(dir, "run"))

      for {event, note} <- [
            {short, "out_of_memory, micro_batch 16, step 1200"},
            {grown, "grown, micro_batch 32, step 1216"}
          ],
          reduce: file do
        file ->
          file = RunFile.event(file, event)
          {:go_on, file} = RunFile.beat(file)
          {_snapshot, values} = read!(hd(run_files(dir)))
          assert values["note"] == note
          file
      end
    end

    test "of a run that ends with its starter is not that of a killed one", %{dir: dir} do
      parent = self()

      {starter, monitor} =
        spawn_monitor(fn ->
          {:ok, run} = trained(dir, steps: 10_000_000)
          :ok = Trainer.subscribe(run)
          receive do: ({:sconce_trainer, ^run, %{event: :step}} -> send(parent, {:run, run}))
          Process.sleep(:infinity)
        end)

      assert_receive {:run, run}, 20_000
      ended = Process.monitor(run)
      Process.exit(starter, :shutdown)
      assert_receive {:DOWN, ^monitor, :process, _pid, _reason}
      assert_receive {:DOWN, ^ended, :process, _pid, _reason}, 20_000
      {snapshot, _values} = read!(hd(run_files(dir)))
      assert snapshot.state == :stopped
    end

    test "leaves a folder of others as it is", %{dir: dir} do
      shared = Path.join(dir, "shared")
      File.mkdir_p!(shared)
      File.chmod!(shared, 0o755)
      Application.put_env(:sconce, :monitor_dir, shared)
      {:ok, run} = trained(dir)
      {:ok, _report} = Trainer.await(run)
      assert Bitwise.band(File.stat!(shared).mode, 0o777) == 0o755
      Application.put_env(:sconce, :monitor_dir, Path.join(dir, "new"))
      {:ok, run} = trained(Path.join(dir, "again"))
      {:ok, _report} = Trainer.await(run)
      assert Bitwise.band(File.stat!(Path.join(dir, "new")).mode, 0o777) == 0o700
    end
  end

  defp seen do
    send(Vm, :sample)
    # The call is answered after the sample.
    %Region{} = GenServer.call(Vm, :region)
    values()
  end

  # The labels of the store in this folder of a test; stores of other tests may be open.
  defp store_labels(values, dir) do
    for "sconce_store_ram_bytes" <> label <- Map.keys(values),
        String.contains?(label, Path.basename(dir)),
        do: label
  end

  test "a leader, a store and a bot have values, and none when they are gone", %{dir: dir} do
    servings = seen()["sconce_servings"]

    {:ok, leader} =
      start_supervised({Sconce.Leader, name: :monitored, members: [node()], lease_ms: 60_000})

    {:ok, _node} = Sconce.Leader.await(leader)
    path = Path.join(dir, "store")
    {:ok, store} = Sconce.Store.open(path)
    :ok = Sconce.Store.put(store, "a", [1, 2])
    {:ok, _tensor} = Sconce.Store.get(store, "a")
    {:ok, policy} = Policy.init(@spec_options)
    {:ok, bot} = Sconce.Bot.start_link(policy: policy, name: :monitored_bot, deadline_ms: 1_000)
    for n <- 1..3, do: {:ok, _action} = Sconce.Bot.step(bot, {n, [0.5]})

    values = seen()
    at = fn name, labels -> Map.fetch!(values, "sconce_" <> name <> labels) end
    labels = ~s({leader=":monitored",leads="#{node()}"})
    {:ok, term} = Sconce.Leader.term(leader)
    assert {at.("leader_leading", labels), at.("leader_term", labels)} == {1.0, term / 1}
    assert {at.("leader_members", labels), at.("leader_granted", labels)} == {1.0, 1.0}
    assert at.("leader_lease_seconds", labels) > 0

    assert [label] = store_labels(values, dir)
    stored = label
    assert label =~ "store\"}"
    assert at.("store_ram_bytes", label) == 8.0
    assert at.("store_disk_bytes", label) > 8
    assert {at.("store_requests_total", label), at.("store_hit_ratio", label)} == {1, 1.0}
    assert {at.("store_prefetch_ratio", label), at.("store_damaged_total", label)} == {nil, 0}

    label = ~s({bot=":monitored_bot"})
    assert {at.("bot_frames_total", label), at.("bot_late_total", label)} == {3, 0}
    assert at.("bot_neutral_total", label) == 0
    assert at.("bot_latency_p99_seconds", label) >= at.("bot_latency_p50_seconds", label)

    # A leader is no serving. One of a test before may have ended meanwhile.
    assert values["sconce_servings"] <= servings

    :ok = Sconce.Store.close(store)
    :ok = GenServer.stop(bot)
    :ok = stop_supervised({Sconce.Leader, :monitored})
    gone = Map.keys(seen())
    refute Enum.any?(gone, &String.contains?(&1, [~s(leader=":monitored"), stored, label]))
  end

  test "the monitor keeps no store open", %{dir: dir} do
    path = Path.join(dir, "store")

    # A store that nothing refers to is closed.
    read = fn ->
      {:ok, store} = Sconce.Store.open(path)
      assert [_label] = store_labels(seen(), dir)
      # Until here the process refers to the store.
      {:ok, _stats} = Sconce.Store.stats(store)
    end

    read |> Task.async() |> Task.await(30_000)
    until(fn -> match?({:ok, _store}, Sconce.Store.open(path)) end)
  end

  defp until(check), do: check.() || (Process.sleep(1) && until(check))

  test "servings with odd and with long names have values of their own" do
    {:ok, policy} = Policy.init(Policy.Spec.new(@spec_options), seed: 1)
    long = String.duplicate("Long", 30)
    names = [:"my bot", :"a\"b\\c", :"#{long}1", :"#{long}2"]
    servings = for name <- names, do: elem(Serving.start_link(policy: policy, name: name), 1)
    send(Vm, :sample)
    :sys.get_state(Vm)
    {:ok, text} = Monitor.prometheus()
    lines = Regex.scan(~r/^sconce_serving_waiting\{serving="((?:[^"\\]|\\.)*)"\} \d/m, text)
    assert length(Enum.uniq(lines)) >= 4
    assert text =~ ~S|serving=":\"my bot\""|
    for serving <- servings, do: :ok = Serving.stop(serving)
  end

  test "leaders, stores and bots whose names are shortened alike have values of their own", %{
    dir: dir
  } do
    long = &:"#{String.duplicate("Long", 30)}#{&1}#{String.duplicate("Name", 30)}"
    {:ok, policy} = Policy.init(@spec_options)

    kept =
      for n <- 1..2 do
        members = [name: long.("leader#{n}"), members: [node()], lease_ms: 60_000]
        {:ok, _leader} = start_supervised({Sconce.Leader, members}, id: n)
        {:ok, bot} = Sconce.Bot.start_link(policy: policy, name: long.("bot#{n}"))
        path = Path.join([dir, "store#{n}", String.duplicate("folder", 20)])
        {:ok, store} = Sconce.Store.open(path)
        {bot, store}
      end

    names = Map.keys(seen())

    for {start, part} <- [
          {~s(sconce_leader_term{leader=":Long), "Name"},
          {~s(sconce_store_ram_bytes{store="…), "folderfolder"},
          {~s(sconce_bot_frames_total{bot=":Long), "Name"}
        ] do
      own = Enum.filter(names, &(String.starts_with?(&1, start) and &1 =~ part))
      assert {start, length(own)} == {start, 2}
    end

    for {bot, store} <- kept do
      :ok = GenServer.stop(bot)
      :ok = Sconce.Store.close(store)
    end
  end

  describe "the table of sessions" do
    # Metrics of sessions by their short names, of each session of this process.
    defp sessions do
      for _twice <- 1..2 do
        send(Vm, :sample)
        :sys.get_state(Vm)
      end

      {:ok, snapshot} = Vm.snapshot()
      own = self() |> :erlang.pid_to_list() |> List.to_string()

      for %{name: "sconce_session_" <> rest, value: value} <- snapshot.slots,
          [_, name, ^own, number] <-
            [Regex.run(~r/\A(\w+)\{owner="([^"]+)",policy="mlp",session="(\d+)"\}\z/, rest)],
          reduce: %{} do
        all -> put_in(all, [Access.key(String.to_integer(number), %{}), name], value)
      end
    end

    defp sampled do
      send(Vm, :sample)
      :sys.get_state(Vm)
      {:ok, snapshot} = Vm.snapshot()
      snapshot.slots
    end

    test "counts the decisions of each one, the late ones, and their time" do
      {:ok, policy} = Policy.init(Policy.Spec.new(@spec_options), seed: 1)
      {:ok, first} = Session.open(policy)
      {:ok, second} = Session.open(policy, lane: :worker)
      {:ok, serving} = Serving.start_link(policy: policy)
      {:ok, third} = Serving.open(serving)
      {:ok, fourth} = Session.open(policy)
      for _ <- 1..3, do: {:ok, _} = Session.act(first, [1.0])
      for _ <- 1..2, do: {:ok, _} = Session.act(second, [1.0])
      {:ok, _} = Session.act(third, [1.0])
      [{:ok, _}, {:ok, _}] = Session.act_many([{first, [1.0]}, {second, [1.0]}])
      missed = values()["sconce_deadlines_missed_total"]

      for session <- [first, second, third],
          do: {:error, %Error{kind: :deadline}} = Session.act(session, [1.0], deadline_ms: 0)

      [{:error, _}, {:error, _}] =
        Session.act_many([{first, [1.0]}, {fourth, [1.0]}], deadline_ms: 0)

      assert values()["sconce_deadlines_missed_total"] - missed == 5

      all = for {_number, figures} <- Enum.sort(sessions()), do: figures
      assert Enum.map(all, & &1["decisions_total"]) == [4, 3, 1, 0]
      assert Enum.map(all, & &1["late_total"]) == [2, 1, 1, 1]
      assert hd(all)["rate"] == 0.0

      # The next second has decisions, unless the VM took a sample between them and ours.
      assert Enum.any?(1..10, fn _try ->
               for _ <- 1..5, do: {:ok, _} = Session.act(first, [1.0])
               own = Enum.filter(sampled(), &(&1.name =~ "sconce_session_" and &1.value != nil))

               Enum.any?(own, &(&1.name =~ "sconce_session_rate{" and &1.value > 0)) and
                 Enum.any?(own, &(&1.name =~ "sconce_session_time_seconds{" and &1.value > 0))
             end)

      # Prometheus would keep a series of each session for ever.
      {:ok, text} = Monitor.prometheus()
      refute text =~ "sconce_session_"
      assert text =~ "sconce_sessions "
      for session <- [first, second, third, fourth], do: :ok = Session.close(session)
      :ok = Serving.stop(serving)
    end

    test "has its present owner, and no session that is gone" do
      {:ok, policy} = Policy.init(Policy.Spec.new(@spec_options), seed: 1)
      parent = self()

      owner =
        spawn(fn ->
          {:ok, session} = Session.open(policy)
          :ok = Session.transfer(session, parent)
          send(parent, {:session, session})
          Process.sleep(:infinity)
        end)

      assert_receive {:session, session}
      {:ok, _} = Session.act(session, [1.0])
      assert [{_number, %{"decisions_total" => 1}}] = Map.to_list(sessions())
      Process.exit(owner, :kill)
      :ok = Session.close(session)
      assert sessions() == %{}
    end

    test "has the busiest of many" do
      {:ok, policy} = Policy.init(Policy.Spec.new(@spec_options), seed: 1)
      many = for _ <- 1..40, do: elem(Session.open(policy), 1)
      sessions()
      busy = List.last(many)

      # The VM may take a sample between the decisions and ours.
      assert Enum.any?(1..10, fn try ->
               for _ <- 1..7, do: {:ok, _} = Session.act(busy, [1.0])

               counts =
                 for %{name: "sconce_session_decisions_total" <> _, value: n} <- sampled(), do: n

               assert length(counts) == 24
               (7 * try) in counts
             end)

      for session <- many, do: :ok = Session.close(session)
    end

    test "has no session that is gone after the sampling process restarts" do
      {:ok, policy} = Policy.init(Policy.Spec.new(@spec_options), seed: 1)
      {:ok, session} = Session.open(policy)
      {:ok, _} = Session.act(session, [1.0])
      assert [{_number, %{"decisions_total" => 1}}] = Map.to_list(sessions())
      before = Process.whereis(Vm)
      :sys.suspend(before)
      :ok = Session.close(session)
      Process.exit(before, :kill)
      until(fn -> Process.whereis(Vm) not in [nil, before] end)
      assert sessions() == %{}
    end
  end

  test "a policy is packed once for all its sessions" do
    {:ok, policy} = Policy.init(Policy.Spec.new(@spec_options), seed: 1)
    count = &values()["sconce_model_#{&1}_total"]
    {hits, misses} = {count.("hits"), count.("misses")}
    sessions = for _ <- 1..3, do: elem(Session.open(policy), 1)
    assert {count.("hits") - hits, count.("misses") - misses} == {2, 1}
    for session <- sessions, do: :ok = Session.close(session)
  end

  test "the process that samples outlives what it cannot sample, and its restart" do
    before = Process.whereis(Vm)
    send(Vm, :sample)
    Application.put_env(:sconce, :monitor_dir, 5)
    Process.exit(before, :kill)
    Process.sleep(200)
    assert pid = Process.whereis(Vm)
    assert pid != before
    send(Vm, :sample)
    :sys.get_state(Vm)
    assert values()["sconce_memory_resident_bytes"] > 1.0e7
  end

  test "the setting is one of the table" do
    assert %{value: true, source: :default} = Config.fetch(:monitor)
    System.put_env("SCONCE_MONITOR", "0")
    on_exit(fn -> System.delete_env("SCONCE_MONITOR") end)
    assert %{value: false, source: "SCONCE_MONITOR"} = Config.fetch(:monitor)
  end

  test "a table that is full leaves the other values alone", %{dir: dir} do
    {:ok, region} = Region.open(Path.join(dir, "0000000a.run"), %{kind: "test"}, 4)
    values = for n <- 1..6, do: {:gauge, "g#{n}", "", "", n}
    region = Region.write(region, values)
    region |> Region.write([{:gauge, "g1", "", "", 10} | Enum.drop(values, 1)]) |> Region.beat()
    assert region.full == "g5"
    {_snapshot, values} = read!(region.path)
    assert values == %{"g1" => 10.0, "g2" => 2.0, "g3" => 3.0, "g4" => 4.0}
  end
end
