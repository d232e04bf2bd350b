defmodule Sconce.Monitor.ViewTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch, only: [tmp_dir!: 1]

  alias Sconce.Monitor.{Graph, Region, Snapshot, View, Watch}

  doctest Graph
  doctest View.Columns

  @sizes [{80, 24}, {160, 50}, {20, 5}, {41, 9}, {300, 100}]

  setup do
    [dir: tmp_dir!("view")]
  end

  defp run!(dir, id, values, became \\ :running, meta \\ []) do
    place = %{kind: "imitation", id: id, out: Path.join(dir, "out-#{id}"), host: host()}
    meta = Enum.into(meta, place)
    {:ok, region} = Region.open(Path.join(dir, id <> ".run"), meta, 64)
    region = Region.write(region, values)
    Region.beat(region, became)
    region
  end

  defp host do
    {:ok, name} = :inet.gethostname()
    List.to_string(name)
  end

  defp training do
    curve = for n <- 1..100, do: {:series, "step.loss.curve", "", "", {n, 5 / n}}

    [
      {:gauge, "start.steps", "", "", 1000},
      {:gauge, "step.step", "", "", 250},
      {:gauge, "step.seconds", "", "", 60.0},
      {:gauge, "step.loss", "", "", 1.25},
      {:gauge, "step.frames_per_second", "", "", 123_456.7},
      {:text, "note", "", "", "checkpoint, step 200"}
    ] ++ curve
  end

  defp drawn(watch, path, opts) do
    view = struct!(%View{columns: 80, rows: 24, now_ms: System.os_time(:millisecond)}, opts)
    watch |> View.lines(path, view) |> Enum.map(&IO.iodata_to_binary/1)
  end

  defp all_sizes(watch, path) do
    for {columns, rows} <- @sizes, ascii <- [true, false] do
      lines = drawn(watch, path, columns: columns, rows: rows, ascii: ascii)
      assert length(lines) == rows
      for line <- lines, do: assert(String.length(line) <= columns, inspect(line))
      if ascii, do: assert(Enum.all?(lines, &(&1 =~ ~r/\A[ -~]*\z/)), inspect(lines))
      refute Enum.any?(lines, &String.contains?(&1, "\e"))
      lines
    end
  end

  test "a run has its progress, its curve, its figures and its note", %{dir: dir} do
    %{path: path} = run!(dir, "0000000a", training())
    watch = dir |> Watch.new(path) |> Watch.read()
    all_sizes(watch, path)
    text = watch |> drawn(path, []) |> Enum.join("\n")
    assert text =~ "run 0000000a · imitation · running"
    assert text =~ "25 % · step 250 of 1,000 · 3 min left"
    assert text =~ ~r/step\.loss +1\.25 /
    assert text =~ "note: checkpoint, step 200"
    # The axis of the curve.
    assert text =~ ~r/^ *5 [┤]/m
    assert text =~ ~r/^ *0\.05 [┤]/m
    assert watch |> drawn(path, ascii: true) |> Enum.join("\n") =~ "*"
  end

  test "all runs are rows, with their state", %{dir: dir} do
    run!(dir, "0000000a", training())
    run!(dir, "0000000b", [{:text, "error", "", "", "no"}], :failed)
    watch = dir |> Watch.new() |> Watch.read()
    all_sizes(watch, nil)
    text = watch |> drawn(nil, []) |> Enum.join("\n")
    assert text =~ ~r/^[12] 0000000a imitation running 250\/1,000 +1\.25/m
    assert text =~ ~r/^[12] 0000000b imitation failed  - /m
  end

  test "rows have the numbers of their keys, and what has no room is counted", %{dir: dir} do
    for n <- 1..30, do: run!(dir, String.pad_leading("#{n}", 8, "0"), training())
    watch = dir |> Watch.new() |> Watch.read()
    all_sizes(watch, nil)
    {runs, []} = View.listed(watch, 24)
    text = watch |> drawn(nil, []) |> Enum.join("\n")
    third = runs |> Enum.at(2) |> Path.basename(".run")
    assert text =~ ~r/^3 #{third}/m
    assert text =~ "… and #{30 - length(runs)} older ones"
    assert length(Regex.scan(~r/imitation/, text)) == length(runs)
  end

  test "nothing is said to be nothing, and a folder that cannot be read is named", %{dir: dir} do
    watch = dir |> Watch.new() |> Watch.read()
    assert hd(tl(tl(drawn(watch, nil, [])))) =~ "Nothing runs here"
    File.write!(Path.join(dir, "file"), "")
    watch = Path.join(dir, "file") |> Watch.new() |> Watch.read()
    assert watch |> drawn(nil, []) |> Enum.join() =~ "not a directory"
  end

  test "colour is only colour", %{dir: dir} do
    %{path: path} = run!(dir, "0000000a", training(), :failed)
    watch = dir |> Watch.new(path) |> Watch.read()
    now = System.os_time(:millisecond)

    for shown <- [nil, path] do
      plain = drawn(watch, shown, now_ms: now)
      coloured = drawn(watch, shown, now_ms: now, colour: true)
      assert Enum.join(coloured) =~ "\e[31;1mfailed"
      assert Enum.map(coloured, &Regex.replace(~r/\e\[[0-9;]*m/, &1, "")) == plain
    end
  end

  test "any figure, name and text fits", %{dir: dir} do
    values = [
      {:gauge, String.duplicate("long", 20), "", "", 1.0e300},
      {:gauge, "unknown", "", "", nil},
      {:gauge, "step.step", "", "", -1.0e308},
      {:gauge, "start.steps", "", "", 1.0e-300},
      {:gauge, "step.seconds", "", "", 1.0e308},
      {:gauge, "wide.日本語\e[2J", "bytes", "", 12.0},
      {:gauge, ~S(weird{a="b",c="d \" e"}), "ns", "", 1.5},
      {:text, "note", "", "", "bad \e]0;title\a \u202E"},
      {:series, "one.curve", "", "", {0, 0}},
      {:series, "flat.curve", "", "", {0, 1}},
      {:series, "flat.curve", "", "", {1, 1}}
    ]

    %{path: path} = run!(dir, "0000000a", values)
    File.cp!(path, Path.join(dir, "4711-0000000a.vm"))
    watch = dir |> Watch.new() |> Watch.read() |> Watch.read()
    for shown <- [nil, path, Path.join(dir, "4711-0000000a.vm")], do: all_sizes(watch, shown)
  end

  test "a VM has times, servings and the app's own", %{dir: dir} do
    path = Path.join(dir, "#{System.pid()}-0000000a.vm")
    {:ok, region} = Region.open(path, %{kind: "vm", name: "app", host: host()}, 64)

    values = fn n ->
      [
        {:counter, "sconce_decisions_total", "decisions", "", 1000 * n},
        {:gauge, "sconce_cpu_ratio", "", "", 0.5},
        {:gauge, "sconce_memory_resident_bytes", "bytes", "", 2.0e9},
        {:counter, ~s(sconce_session_late_total{owner="<0.9.0>",policy="gru",session="10"}), "",
         "", 10 * n},
        {:counter, ~s(sconce_session_late_total{owner="<0.8.0>",policy="gru",session="9"}), "",
         "", 3},
        {:gauge, ~s(sconce_serving_waiting{serving="MyApp"}), "requests", "", 3},
        {:counter, ~s(sconce_serving_requests_total{serving="MyApp"}), "", "", 77},
        {:counter, ~s(my_wins_total{stage="battlefield"}), "", "", 7},
        {:counter, "my_other", "", "", 42}
      ]
    end

    {:ok, histogram} =
      Sconce.Native.monitor_metric(region.ref, :histogram, "my_seconds", "ns", "")

    for n <- 1..100, do: Sconce.Native.monitor_record(region.ref, histogram, 1000 * n)
    region = Region.write(region, values.(1))
    Region.beat(region)
    watch = dir |> Watch.new(path) |> Watch.read()
    Process.sleep(20)
    region |> Region.write(values.(2)) |> Region.beat()
    watch = Watch.read(watch)
    all_sizes(watch, path)
    text = watch |> drawn(path, columns: 120, rows: 50) |> Enum.join("\n")
    assert text =~ "cpu 50 %"
    assert text =~ "memory 2.0 GB"
    assert text =~ ~r/[\d,]+ decisions\/s/
    assert text =~ ~r/^my +0 +(49|5)[0-9.]+ us +9[0-9.]+ us/m
    assert text =~ ~r/^serving +waiting +requests/m
    assert text =~ ~r/^MyApp +3 +77/m
    assert text =~ ~r/^battlefield +7/m
    assert text =~ ~r/^session +session_late.*\n9 <0.8.0> gru +3 *\n10 <0.9.0> gru +20/m
    assert text =~ ~r/my_other +42/
  end

  test "a file that vanishes, is cut or is replaced keeps the last figures", %{dir: dir} do
    %{path: path} = run!(dir, "0000000a", training())
    watch = dir |> Watch.new(path) |> Watch.read()
    whole = File.read!(path)
    File.write!(path, binary_part(whole, 0, 5000))
    watch = Watch.read(watch)
    assert watch |> drawn(path, columns: 160) |> Enum.join() =~ "file gone, last figures at"
    assert watch |> drawn(path, []) |> Enum.join() =~ "step 250 of 1,000"
    File.rm!(path)
    watch = Watch.read(watch)
    assert watch |> drawn(path, []) |> Enum.join() =~ "step 250 of 1,000"
    Process.sleep(5)
    run!(dir, "0000000a", [{:gauge, "step.step", "", "", 1}])
    watch = Watch.read(watch)
    assert watch |> drawn(path, []) |> Enum.join() =~ "step 1"
    refute watch |> drawn(path, []) |> Enum.join() =~ "file gone"
  end

  test "a process that was killed is said to be dead, with the time of its last figures", %{
    dir: dir
  } do
    {text, 0} = System.cmd("sh", ["-c", "sleep 60 >/dev/null 2>&1 & echo $!"])
    pid = String.trim(text)
    region = run!(dir, "0000000a", training())
    # The same file of another process.
    <<head::binary-size(24), _pid::64, start::64, _ticks::64, rest::binary>> =
      File.read!(region.path)

    path = Path.join(dir, "0000000b.run")
    pid = String.to_integer(pid)
    File.write!(path, [head, <<pid::little-64, start::64, 0::64>>, rest])
    watch = dir |> Watch.new(path) |> Watch.read()
    assert watch |> drawn(path, []) |> hd() =~ "running"
    {_text, 0} = System.cmd("kill", ["-9", "#{pid}"])
    # A busy machine may take a while to end the process.
    watch =
      Enum.find_value(1..100, fn _try ->
        Process.sleep(100)
        watch = Watch.read(watch)
        if watch |> drawn(path, columns: 120) |> hd() =~ "DEAD", do: watch
      end)

    assert watch, "the process is not said to be dead"

    assert watch |> drawn(path, columns: 80) |> Enum.at(1) =~
             ~r/last figures at \d\d:\d\d:\d\d, \d+ \w+ ago$/

    assert watch |> drawn(path, []) |> Enum.join() =~ "step 250 of 1,000"
  end

  test "a run is shown with the machine of its VM", %{dir: dir} do
    name = "#{System.pid()}-0000000b.vm"
    {:ok, vm} = Region.open(Path.join(dir, name), %{kind: "vm"}, 8)
    %{path: path} = run!(dir, "0000000a", training(), :running, vm: name)
    vm = Region.write(vm, [{:gauge, "sconce_cpu_ratio", "", "", 0.75}])
    Region.beat(vm)
    watch = dir |> Watch.new(path) |> Watch.read() |> Watch.read()
    assert watch |> drawn(path, []) |> Enum.join("\n") =~ "cpu 75 %"
  end

  test "the course of a figure is bounded", %{dir: dir} do
    region = run!(dir, "0000000a", training())
    watch = Watch.new(dir, region.path)

    watch =
      Enum.reduce(1..300, watch, fn n, watch ->
        region |> Region.write([{:gauge, "step.loss", "", "", n}]) |> Region.beat()
        Watch.read(watch)
      end)

    assert length(watch.files[region.path].course["step.loss"]) == 240
    assert hd(watch.files[region.path].course["step.loss"]) == 300.0
    assert {:ok, %Snapshot{}} = Snapshot.open(region.path)
  end
end
