defmodule Sconce.Monitor.View do
  @moduledoc false
  # Draws what a watch has read: a table of all runs and VMs, or one of them. Pure: the same watch, time, size and style
  # give the same lines.

  import Sconce.Monitor.View.Words

  alias Sconce.Monitor.{Graph, Snapshot, Summary, Watch}
  alias Sconce.Monitor.Snapshot.Histogram
  alias Sconce.Monitor.View.Columns
  alias Sconce.Text

  @enforce_keys [:columns, :rows, :now_ms]
  defstruct @enforce_keys ++ [colour: false, ascii: false]

  @typedoc "The size in characters, the time, and the style."
  @type t :: %__MODULE__{
          columns: pos_integer,
          rows: pos_integer,
          now_ms: integer,
          colour: boolean,
          ascii: boolean
        }

  # ANSI codes by what a text means.
  @codes %{title: "1", good: "32", bad: "31;1", dim: "2", warn: "33"}

  @doc """
  Returns exactly `rows` lines of at most `columns` characters. `path` is the file in view; nil is the table of all.
  """
  @spec lines(Watch.t(), Path.t() | nil, t) :: [iodata]
  def lines(%Watch{} = watch, path, %__MODULE__{} = view) do
    body =
      case watch.files[path] do
        nil -> overview(watch, view)
        %{now: %{kind: :run}} = run -> run(run, of_same_vm(watch, run), view)
        vm -> vm(vm, view)
      end

    body
    |> Stream.concat(Stream.repeatedly(fn -> [] end))
    |> Enum.take(view.rows)
    |> Enum.map(&line(&1, view))
  end

  defp of_same_vm(watch, %{now: %{os_pid: pid}}) do
    Enum.find_value(watch.files, fn {_path, file} ->
      if file.now.kind == :vm and file.now.os_pid == pid and file.life == :running, do: file
    end)
  end

  # A line is a list of texts, or of {meaning, text}. It is cut before it is coloured.
  defp line(parts, view) do
    {parts, _left} =
      parts
      |> List.wrap()
      |> Enum.map_reduce(view.columns, fn part, left ->
        {meaning, text} = if is_tuple(part), do: part, else: {nil, part}
        text = text |> plain(view) |> Columns.cut(left)
        {coloured(meaning, text, view), left - Columns.width(text)}
      end)

    parts
  end

  defp coloured(nil, text, _view), do: text
  defp coloured(_meaning, text, %{colour: false}), do: text
  defp coloured(meaning, text, _view), do: ["\e[", @codes[meaning], "m", text, "\e[0m"]

  defp plain(text, %{ascii: false}), do: text

  defp plain(text, _ascii) do
    text
    |> String.replace("·", "|")
    |> String.replace("…", "..")
    |> String.replace(~r/[^ -~]/u, "?")
  end

  # All

  @doc "The files in the table of all, in a picture of this many rows: runs, then VMs."
  @spec listed(Watch.t(), pos_integer) :: {[Path.t()], [Path.t()]}
  def listed(watch, rows) do
    {runs, vms} = Enum.split_with(watch.order, &(watch.files[&1].now.kind == :run))
    room = max(rows - 9, 2)
    vms = Enum.take(vms, max(div(room, 3), 1))
    {Enum.take(runs, max(room - length(vms), 1)), vms}
  end

  defp overview(watch, view) do
    {runs, vms} = listed(watch, view.rows)
    head = [{:title, "sconce monitor"}, " · #{clock(view.now_ms)} · ", {:dim, watch.dir}]
    error = if watch.error, do: [[{:bad, Text.printable(watch.error, 500)}]], else: []

    empty =
      if watch.order == [] and error == [],
        do: [
          [],
          [
            "Nothing runs here. A run of Sconce.Trainer, Sconce.PPO or mix sconce.train appears at its start,"
          ],
          ["an app at the start of :sconce."]
        ],
        else: []

    hidden = length(watch.order) - length(runs) - length(vms)
    more = if hidden > 0, do: [[{:dim, "… and #{hidden} older ones"}]], else: []

    [head] ++
      error ++
      empty ++
      table(runs, 1, watch, &run_row(&1, view), run_titles()) ++
      table(vms, 1 + length(runs), watch, &vm_row(&1, view), vm_titles()) ++
      more ++ [[], keys(view)]
  end

  defp keys(_view), do: [{:dim, "q ends · 1 to 9 opens a row · 0 shows all"}]

  defp table([], _first, _watch, _row, _titles), do: []

  # The first nine rows have a number, the key that opens them.
  defp table(paths, first, watch, row, titles) do
    rows =
      for {path, n} <- Enum.with_index(paths, first),
          do: [if(n < 10, do: "#{n} ", else: "  ") | row.(watch.files[path])]

    [[], [{:title, "  " <> titles}]] ++ rows
  end

  defp run_titles,
    do:
      cells([{"id", 9}, {"kind", 10}, {"state", 8}, {"step", 17}, {"loss", 9}, {"age", 9}]) <>
        "folder"

  defp run_row(%{now: now} = run, view) do
    {done, all} = Summary.progress(run)
    step = if all, do: "#{short(done)}/#{short(all)}", else: short(done)

    [
      cells([{now.id, 9}, {text(now.meta["kind"]), 10}]),
      {meaning(run), cells([{state(run), 8}])},
      cells([{step, 17}, {Graph.number(Summary.main(run)), 9}, {age(run, view), 9}]),
      text(now.meta["out"])
    ]
  end

  defp vm_titles,
    do:
      cells([{"VM", 9}, {"state", 8}, {"cpu", 8}, {"memory", 10}, {"decisions/s", 13}, {"age", 9}]) <>
        "name"

  defp vm_row(%{now: now} = vm, view) do
    [
      cells([{now.id, 9}]),
      {meaning(vm), cells([{state(vm), 8}])},
      cells([
        {Graph.measure(gauge(vm, "sconce_cpu_ratio"), "ratio"), 8},
        {Graph.measure(gauge(vm, "sconce_memory_resident_bytes"), "bytes"), 10},
        {Graph.number(Watch.rate(vm, "sconce_decisions_total")), 13},
        {age(vm, view), 9}
      ]),
      text(now.meta["name"])
    ]
  end

  defp cells(cells), do: Enum.map_join(cells, fn {text, width} -> Columns.filled(text, width) end)

  # One run

  defp run(%{now: now} = run, vm, view) do
    head = [
      [
        {:title, "run #{now.id}"},
        " · #{text(now.meta["kind"])} · ",
        {meaning(run), state(run)},
        " · #{age(run, view)}"
      ]
      | silence(run, view)
    ]

    head =
      head ++
        [
          [{:dim, "#{text(now.meta["out"])} · pid #{now.os_pid} · #{text(now.meta["host"])}"}],
          progress_line(run, view)
        ]

    curves = Summary.curves(run)
    figures = figures(run, view)
    notes = notes(now, view)
    machine = if vm, do: [machine(vm)], else: []
    fixed = length(head) + length(notes) + length(machine) + 2
    rows = min(length(figures), max(div(view.rows - fixed, 2), 3))
    height = view.rows - fixed - rows - 1

    head ++
      graphs(curves, view, height) ++
      Enum.take(figures, rows) ++ [[]] ++ machine ++ notes ++ [keys(view)]
  end

  # The first curves side by side, if the terminal is wide.
  defp graphs(curves, view, height) when height >= 4 and curves != [] do
    n = min(length(curves), max(div(view.columns, 60), 1))
    width = div(view.columns, n) - 2

    drawn =
      for {name, curve} <- Enum.take(curves, n) do
        title = String.pad_trailing(name, width)
        [title | Graph.curve(curve.value.points, width, height - 1, style(view))]
      end

    drawn
    |> Enum.zip_with(
      &Enum.map_intersperse(&1, "  ", fn text -> String.pad_trailing(text, width) end)
    )
    |> Enum.map(&[Enum.join(&1)])
  end

  defp graphs(_curves, _view, height), do: List.duplicate([], max(height, 0))

  # Gauges in two or more columns, each with its course.
  defp figures(%{course: course} = run, view) do
    per_line = max(div(view.columns, 40), 1)
    width = div(view.columns, per_line)

    run
    |> Summary.gauges()
    |> Enum.map(fn slot ->
      line = Graph.sparkline(Enum.reverse(course[slot.name] || []), 8, style(view))
      value = slot.value |> Graph.measure(unit(slot)) |> String.pad_leading(10)
      name = slot.name |> text() |> Columns.filled(width - 10 - String.length(value))
      name <> value <> " " <> line <> " "
    end)
    |> Enum.chunk_every(per_line)
    |> Enum.map(&[Enum.join(&1)])
  end

  defp notes(now, _view) do
    for {name, meaning} <- [{"note", nil}, {"error", :bad}],
        said = Snapshot.value(now, name),
        is_binary(said) and said != "",
        do: [{meaning, "#{name}: #{text(said)}"}]
  end

  defp progress_line(run, view) do
    {done, all} = Summary.progress(run)

    case Summary.share(run) do
      nil ->
        ["step #{short(done)}"]

      share ->
        bar = Graph.bar(share, max(div(view.columns, 4), 8), style(view))
        left = Summary.left(run, share)

        [
          bar,
          " #{Graph.measure(share, "ratio")} · step #{short(done)} of #{short(all)}",
          if(left, do: " · #{duration(left)} left", else: "")
        ]
    end
  end

  # A line of its own, because it must not be cut.
  defp silence(file, view) do
    case lately(file, view) do
      "" -> []
      lately -> [[{meaning(file), lately}]]
    end
  end

  # One VM

  defp vm(%{now: now} = vm, view) do
    head = [
      [
        {:title, "VM #{now.id}"},
        " · #{text(now.meta["name"])} · ",
        {meaning(vm), state(vm)},
        " · #{age(vm, view)}"
      ]
      | silence(vm, view)
    ]

    head =
      head ++
        [
          [
            {:dim, "#{text(now.meta["host"])} · #{text(now.meta["command"] || now.meta["node"])}"}
          ],
          machine(vm)
        ]

    times = for %{kind: :histogram} = slot <- now.slots, count(vm, slot.name) > 0, do: slot

    {labelled, plain} =
      Enum.split_with(now.slots, &(&1.kind in [:counter, :gauge] and labels(&1) != []))

    counters = for %{kind: kind} = slot <- plain, kind in [:counter, :gauge], do: slot

    sections =
      times_table(vm, times, view) ++
        labelled_table(labelled, view) ++
        distribution(vm, times, view) ++ numbers(vm, counters, view)

    head ++ Enum.take(sections, view.rows - length(head) - 1) ++ [keys(view)]
  end

  defp machine(%{now: now} = vm) do
    rates =
      for {name, noun} <- [
            {"sconce_decisions_total", "decisions/s"},
            {"sconce_train_steps_total", "steps/s"}
          ],
          rate = Watch.rate(vm, name),
          rate > 0,
          do: " · #{Graph.number(rate)} #{noun}"

    [
      "cpu #{Graph.measure(gauge(vm, "sconce_cpu_ratio"), "ratio")}",
      " of machine #{Graph.measure(gauge(vm, "sconce_machine_cpu_ratio"), "ratio")}",
      " · memory #{Graph.measure(gauge(vm, "sconce_memory_resident_bytes"), "bytes")}",
      ", free #{Graph.measure(gauge(vm, "sconce_memory_available_bytes"), "bytes")}"
      | if(rates == [], do: [" · pid #{now.os_pid}"], else: rates)
    ]
  end

  defp times_table(_vm, [], _view), do: []

  defp times_table(vm, times, view) do
    titles =
      cells([
        {"times", 28},
        {"a second", 11},
        {"p50", 10},
        {"p95", 10},
        {"p99", 10},
        {"p99.9", 10}
      ])

    rows =
      for slot <- times do
        histogram = Watch.latest(vm, slot.name)
        rates = Enum.reverse(vm.course[slot.name] || [])
        at = &Graph.measure(Histogram.quantile(histogram, &1), slot.unit)

        [
          cells([
            {short_name(slot.name), 28},
            {Graph.number(Watch.rate(vm, slot.name)), 11},
            {at.(0.5), 10},
            {at.(0.95), 10},
            {at.(0.99), 10},
            {at.(0.999), 10}
          ]),
          if(view.columns > 100, do: Graph.sparkline(rates, 24, style(view)), else: "")
        ]
      end

    [[], [{:title, titles}]] ++ rows
  end

  # The distribution of the most frequent times.
  defp distribution(_vm, [], _view), do: []
  defp distribution(_vm, _times, %{rows: rows}) when rows < 30, do: []

  defp distribution(vm, times, view) do
    slot = Enum.max_by(times, &count(vm, &1.name))
    histogram = Watch.latest(vm, slot.name)
    counts = for {bucket, n} <- histogram.counts, do: {Histogram.middle(bucket), n}

    rows =
      for {from, share, count} <- Graph.octaves(counts, 8) do
        label = String.pad_leading(Graph.measure(from, slot.unit), 12)
        [label, " ", Graph.bar(share, 40, style(view)), " #{Graph.number(count)}"]
      end

    [[], [{:title, "#{short_name(slot.name)}, by powers of two"}]] ++ rows
  end

  # Servings, devices and the app's own: a row for each label, a column for each metric.
  defp labelled_table(slots, view) do
    slots
    |> Enum.group_by(fn slot -> slot |> labels() |> hd() |> elem(0) end)
    |> Enum.sort()
    |> Enum.flat_map(fn {label, slots} -> group(label, slots, view) end)
  end

  defp group(label, slots, view) do
    most = max(div(view.columns - 20, 13), 1)
    names = slots |> Enum.map(&base/1) |> Enum.uniq() |> Enum.take(most)
    prefix = common(names)
    titles = Enum.map(names, &{&1 |> String.replace_prefix(prefix, "") |> short_name(), 13})

    rows =
      slots
      |> Enum.group_by(&labels/1)
      |> Enum.sort_by(fn {labels, _slots} -> Enum.map(labels, &natural(elem(&1, 1))) end)
      |> Enum.map(fn {labels, own} ->
        values = Map.new(own, &{base(&1), Graph.measure(&1.value, unit(&1))})
        name = Enum.map_join(labels, " ", &elem(&1, 1)) |> text()
        [cells([{name, 20} | Enum.map(names, &{values[&1] || "-", 13})])]
      end)

    [[], [{:title, cells([{label, 20} | titles])}]] ++ rows
  end

  # Numbers in the order of their values, before other texts.
  defp natural(text) do
    case Integer.parse(text) do
      {number, ""} -> {0, number}
      _other -> {1, text}
    end
  end

  # The common beginning of all names, up to the last `_`.
  defp common([_one]), do: ""

  defp common([first | rest]) do
    Enum.reduce(rest, first, fn name, prefix ->
      n = :binary.longest_common_prefix([name, prefix])
      binary_part(prefix, 0, n)
    end)
    |> String.replace(~r/[^_]*\z/, "")
  end

  defp numbers(_vm, [], _view), do: []

  defp numbers(vm, slots, view) do
    per_line = max(div(view.columns, 44), 1)
    width = div(view.columns, per_line)

    rows =
      slots
      |> Enum.reject(&(&1.value in [nil, 0]))
      |> Enum.map(fn slot ->
        rate = slot.kind == :counter && Watch.rate(vm, slot.name)
        beside = if rate && rate > 0, do: " #{Graph.number(rate)}/s", else: ""

        name =
          slot.name
          |> short_name()
          |> Columns.filled(width - 22)

        String.pad_trailing(name <> Graph.measure(slot.value, unit(slot)) <> beside, width)
      end)
      |> Enum.chunk_every(per_line)
      |> Enum.map(&[Enum.join(&1)])

    [[], [{:title, "numbers"}]] ++ rows
  end

  defp style(view), do: %{ascii: view.ascii, colour: view.colour}
end
