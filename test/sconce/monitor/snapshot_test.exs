defmodule Sconce.Monitor.SnapshotTest do
  # Not async: a test counts the atoms of this VM, and other tests make some.
  use ExUnit.Case, async: false

  import Sconce.Test.Scratch
  import Sconce.Test.FiguresFile

  alias Sconce.Error
  alias Sconce.Monitor.{Folder, Json, Snapshot}
  alias Sconce.Monitor.Snapshot.{Histogram, Layout, Life, Slot}

  doctest Json
  doctest Histogram
  doctest Slot
  doctest Snapshot

  @figures [
    {:gauge, "step.loss", 1.5, "nats", "Loss of the step."},
    {:gauge, "validation.nll", nil},
    {:counter, "sconce_decisions_total", 42},
    {:histogram, "sconce_decision_seconds", {5_000, [{10, 3}, {200, 1}]}, "ns", ""},
    {:series, "step.loss", [{1.0, 3.0}, {2.0, 2.5}]},
    {:text, "note", "saved \e[2J"}
  ]

  defp file!(bytes) do
    path = Path.join(tmp_dir!("figures"), "0a1b2c3d.run")
    File.write!(path, bytes)
    path
  end

  test "every kind of figure is read" do
    {:ok, snapshot} = @figures |> List.delete_at(0) |> encode() |> file!() |> Snapshot.open()
    assert %{kind: :run, id: "0a1b2c3d", state: :running, meta: %{"out" => "/tmp/run"}} = snapshot
    assert Snapshot.value(snapshot, "validation.nll") == nil
    assert Snapshot.value(snapshot, "sconce_decisions_total") == 42
    assert Snapshot.value(snapshot, "step.loss") == [{1.0, 3.0}, {2.0, 2.5}]
    assert Snapshot.value(snapshot, "note") == "saved \e[2J"

    assert %{count: 4, mean: 1250.0, p50: 10.0} =
             Snapshot.value(snapshot, "sconce_decision_seconds")

    assert inspect(snapshot) ==
             "#Sconce.Monitor.Snapshot<run 0a1b2c3d running /tmp/run, 5 figures>"

    {:ok, snapshot} = @figures |> Enum.take(1) |> encode() |> file!() |> Snapshot.open()

    assert [%{name: "step.loss", unit: "nats", help: "Loss of the step.", value: 1.5}] =
             snapshot.slots
  end

  test "each corruption is named" do
    bytes = encode(@figures)
    slot = fn n, word -> 512 + 32 * n + word end

    [loss, _nll, _decisions, histogram, series, text] =
      for n <- 0..5, do: word(bytes, slot.(n, 1))

    assert loss == 512 + 32 * 8

    for {bad, reason} <- [
          {"", "the file is cut at 0 bytes, within its header"},
          {"SCON", "the file is cut at 4 bytes, within its header"},
          {binary_part(bytes, 0, 4095), "the file is cut at 4095 bytes, within its header"},
          {binary_part(bytes, 0, byte_size(bytes) - 1),
           ~r/the file is cut at \d+ bytes, expected \d+/},
          {"sconwtch" <> binary_part(bytes, 8, byte_size(bytes) - 8),
           "the file is no file of figures"},
          {put(bytes, 1, 2), "the file has version 2, expected 1"},
          {put(bytes, 6, 1_000_000), ~r/the table of 1000000 slots is outside the file/},
          {put(bytes, 7, 9), "9 slots are in use, of 8"},
          {put(bytes, 9, 4), "the state 4 is unknown"},
          {put(bytes, 10, 4_000), "the meta text has 4000 bytes, of at most 3968"},
          {put(bytes, 16, 0xFFFF), "the meta text is not UTF-8"},
          {encode([], meta: "[1]"), "the meta text is no JSON object"},
          {encode([], meta: "{\"a\": 1,}"), "the meta text is no JSON: byte 8: expected a key"},
          {encode([], meta: String.duplicate("[", 3_000)), ~r/more than 32 levels/},
          {put(bytes, slot.(1, 0), 6), "slot 1 has the unknown kind 6"},
          {put(bytes, slot.(1, 1), 511),
           ~r/the data of slot 1 are outside the file: 1 words from 511/},
          {put(bytes, slot.(1, 1), 0xFFFF_FFFF_FFFF_FFFF),
           ~r/the data of slot 1 are outside the file/},
          {put(bytes, slot.(1, 2), 0xFFFF_FFFF_FFFF_FFFF),
           ~r/the data of slot 1 are outside the file/},
          {put(bytes, slot.(1, 2), 0), "slot 1 has 0 words, too few for a gauge"},
          {put(bytes, slot.(1, 3), 0), "slot 1 has no name"},
          {put(bytes, slot.(1, 3), 300), "the names of slot 1 have 300 bytes"},
          {put(bytes, slot.(1, 4), 0xFF), "a name of slot 1 is not UTF-8"},
          {put(bytes, series + 1, 3), "the series of slot 4 has 3 points, in room for 2"},
          {put(bytes, text + 1, 99), "the text of slot 5 has 99 bytes, in room for 16"},
          {shared(bytes, histogram), ~r/slot \d shares its data with another/}
        ] do
      assert {:error, %Error{kind: :corrupt, details: details}} = Snapshot.open(file!(bad))
      assert details.reason =~ reason, "#{details.reason} is not #{inspect(reason)}"
    end
  end

  defp word(bytes, at), do: bytes |> binary_part(8 * at, 8) |> :binary.decode_unsigned(:little)

  # Every slot has all data of the file.
  defp shared(bytes, _at) do
    words = div(byte_size(bytes), 8)

    Enum.reduce(0..5, bytes, fn n, bytes ->
      bytes
      |> put(512 + 32 * n, 3)
      |> put(512 + 32 * n + 1, 512)
      |> put(512 + 32 * n + 2, words - 512)
    end)
  end

  test "what is no readable file of figures is refused by kind" do
    dir = tmp_dir!("figures")
    assert {:error, %Error{kind: :not_found}} = Snapshot.open(Path.join(dir, "1.vm"))
    assert {:error, %Error{kind: :corrupt} = error} = Snapshot.open(dir)
    assert Exception.message(error) =~ "is not a file"

    pipe = Path.join(dir, "2.vm")
    {_, 0} = System.cmd("mkfifo", [pipe])
    assert {:error, %Error{kind: :corrupt}} = Snapshot.open(pipe)

    long = Path.join(dir, "3.vm")

    {:ok, :ok} =
      File.open(long, [:write, :raw], &elem({:file.pwrite(&1, 17 * 1024 * 1024, "x"), 0}, 0))

    assert {:error, %Error{details: %{reason: "the file has more than 16777216 bytes"}}} =
             Snapshot.open(long)

    assert {:error, %Error{kind: :io, details: %{reason: "not a directory"}}} =
             Snapshot.open(Path.join(long, "a.run"))

    assert_raise ArgumentError, fn -> Snapshot.open(1) end
  end

  test "a series that its writer changes during the reading is unknown, and the others are read" do
    bytes = encode([{:gauge, "a", 1.0}, {:series, "b", [{1.0, 2.0}]}, {:text, "c", "d"}])
    at = word(bytes, 512 + 32 + 1)
    {:ok, snapshot} = bytes |> put(at, 7) |> file!() |> Snapshot.open()
    assert for(name <- ~w(a b c), do: Snapshot.value(snapshot, name)) == [1.0, nil, "d"]
  end

  test "mutated files are read or refused, and make no atom" do
    bytes = encode(@figures)
    _ = :rand.seed(:exsss, {26, 1, 2})
    Enum.each(1..50, fn _ -> Layout.decode(mutant(bytes)) end)
    before = :erlang.system_info(:atom_count)

    kinds =
      for _ <- 1..2_000 do
        case Layout.decode(mutant(bytes)) do
          {:ok, %{slots: slots}} when length(slots) <= 8 -> :ok
          {:error, reason} when is_binary(reason) -> :error
        end
      end

    assert %{ok: read, error: refused} = Enum.frequencies(kinds)
    assert read > 100 and refused > 100
    assert :erlang.system_info(:atom_count) - before < 5
  end

  defp mutant(bytes) do
    size = byte_size(bytes)

    Enum.reduce(1..:rand.uniform(4), bytes, fn _, bytes ->
      # Most of the file is zeros: mutations aim at the used parts.
      at = Enum.random([:rand.uniform(200), 4096 + :rand.uniform(2_000), :rand.uniform(size)]) - 1

      case :rand.uniform(12) do
        1 ->
          binary_part(bytes, 0, min(at, byte_size(bytes)))

        _ when at >= byte_size(bytes) ->
          bytes

        2 when byte_size(bytes) >= 8 ->
          put(bytes, min(div(at, 8), div(byte_size(bytes), 8) - 1), big())

        _ ->
          :binary.part(bytes, 0, at) <> <<:rand.uniform(256) - 1>> <> rest(bytes, at + 1)
      end
    end)
  end

  defp big, do: Enum.random([0xFFFF_FFFF_FFFF_FFFF, 0x8000_0000_0000_0000, :rand.uniform(5_000)])
  defp rest(bytes, at), do: binary_part(bytes, at, byte_size(bytes) - at)

  test "a writer that was killed, whose process another one replaced, or that is silent is found" do
    port = Port.open({:spawn_executable, "/bin/sleep"}, args: ["60"])
    {:os_pid, pid} = Port.info(port, :os_pid)
    [_, ticks] = Regex.run(~r/\) (?:\S+ ){19}(\d+)/, File.read!("/proc/#{pid}/stat"))
    ticks = String.to_integer(ticks)
    meta = %{"kind" => "vm", "host" => Life.host()}

    open = fn opts ->
      {:ok, snapshot} =
        []
        |> encode(opts ++ [os_pid: pid, ticks: ticks, meta: meta])
        |> file!()
        |> Snapshot.open()

      snapshot
    end

    old = [heartbeat_ms: System.os_time(:millisecond) - 11_000]
    assert Snapshot.life(open.([])) == :running
    assert Snapshot.life(open.(old)) == :silent
    assert Snapshot.life(open.(ticks: ticks + 1)) == :dead
    assert Snapshot.life(open.(ticks: 0)) == :running
    assert Snapshot.life(open.(meta: %{"host" => "elsewhere"}, os_pid: 4_000_000_000)) == :running

    for {state, n} <- [done: 1, failed: 2, stopped: 3],
        do: assert(Snapshot.life(open.(state: n)) == state)

    running = open.([])
    {_, 0} = System.cmd("kill", ["-9", to_string(pid)])
    assert dead?(running, 100)
  end

  # The process ends shortly after the signal.
  defp dead?(snapshot, tries) do
    Snapshot.life(snapshot) == :dead or
      (tries > 0 and (Process.sleep(20) == :ok and dead?(snapshot, tries - 1)))
  end

  test "a folder lists its readable files, the latest first" do
    dir = tmp_dir!("figures")
    old = write!(dir, "00000001.run", [])
    File.touch!(old, 1_000_000)
    write!(dir, "12-0000000a.vm", [], meta: %{"kind" => "vm"})
    File.write!(Path.join(dir, "00000002.run"), "cut")
    File.write!(Path.join(dir, "notes.txt"), "")
    {:ok, snapshots} = Snapshot.list(dir)
    assert [{:vm, "12"}, {:run, "00000001"}] = for(s <- snapshots, do: {s.kind, s.id})
    assert {:error, %Error{kind: :io}} = Snapshot.list(Path.join(dir, "notes.txt"))
    assert {:ok, files} = Folder.files(dir)
    assert length(files) == 3
  end

  test "rates and summaries are those between two readings of one writer" do
    path =
      file!(encode([{:counter, "n", 10}, {:histogram, "h", {100, [{50, 2}]}}], started_ms: 1))

    {:ok, before} = Snapshot.open(path)

    File.write!(
      path,
      encode([{:counter, "n", 30}, {:histogram, "h", {400, [{50, 2}, {60, 5}]}}], started_ms: 1)
    )

    {:ok, now} = Snapshot.open(path)
    now = %{now | read_us: before.read_us + 4_000_000}
    assert Snapshot.rate(now, before, "n") == 5.0
    assert Snapshot.rate(now, before, "h") == 1.25
    assert %{count: 5, mean: 60.0, p99: 60.0} = Snapshot.summary(now, "h", before)
    assert Snapshot.rate(now, before, "none") == nil

    # The counter of another writer begins anew.
    assert Snapshot.rate(%{now | started_ms: 2}, before, "n") == nil
    assert Snapshot.summary(%{now | os_pid: 1}, "h", before) == nil
  end
end
