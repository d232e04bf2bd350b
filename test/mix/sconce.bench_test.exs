defmodule Mix.Tasks.Sconce.BenchTest do
  use ExUnit.Case, async: false

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Mix.Tasks.Sconce.Bench
  alias Sconce.Bench.{Case, Cases, Output}

  doctest Case
  doctest Output

  @columns ~w(name case batch threads median_us p95_us n limit_us limit)

  setup do
    Mix.shell(Mix.Shell.IO)
    {:ok, json: Path.join(tmp_dir!("bench"), "rows.json")}
  end

  defp bench(only, args \\ []),
    do: capture_io(fn -> Bench.run(["--only", only, "--budget", "0.01"] ++ args) end)

  # Titles and rows of the table, which begins after an empty line.
  defp table(output) do
    [_header, table | _rest] = String.split(output, "\n\n")
    [titles | rows] = String.split(table, "\n", trim: true)
    {String.split(titles), rows}
  end

  test "prints a row for each case that matches, under its machine" do
    output = bench("^call NIF|^frame pack|^act mlp .*learned")
    assert output =~ "Elixir #{System.version()}, OTP #{System.otp_release()}, rustc "
    {titles, rows} = table(output)
    assert titles == @columns
    assert [call, frame, act] = rows
    assert call =~ ~r/^call +NIF, no-op +1 +1 +[\d.]+ +[\d.]+ +\d+ +- +the control/
    assert frame =~ ~r"^frame +pack a struct in Elixir +1 +1 .* 396 B at [\d.,]+ GB/s$"
    assert act =~ ~r"^act +mlp 512 512, learned, one frame .* MB at [\d.,]+ GB/s; \w+ lane$"
    refute output =~ "FAILED"
  end

  test "writes one JSON object a line, with the machine in each", %{json: json} do
    bench("^embed|^import games made", ["--json", json, "--threads", "1"])
    lines = json |> File.read!() |> String.split("\n", trim: true)
    assert length(lines) == 3

    for line <- lines do
      assert line =~ ~r/^\{("\w+":("[^"]*"|[-\d.e]+|true|null),?)+\}$/
      for key <- @columns ++ ~w(cpu cores rustc otp date), do: assert(line =~ ~s("#{key}":))
      assert line =~ ~s("ok":true)
    end

    assert List.last(lines) =~ ~s("games":9,)
  end

  test "training steps bring the loss down and say so", %{json: json} do
    bench("^train mlp", ["--json", json, "--threads", "1"])
    line = File.read!(json)
    assert [_, first, last] = Regex.run(~r/"first_loss":([\d.]+),.*"last_loss":([\d.]+)/, line)
    assert String.to_float(last) < String.to_float(first)
  end

  test "peers stand beside ours, in a table and in the JSON", %{json: json} do
    peers = json <> ".peers"
    row = ~s({"peer": "jax", "case": "train_mlp", "batch": 256, "threads": 1, "median_us": 9e9})
    File.write!(peers, row)
    output = bench("^train mlp", ["--json", json, "--threads", "1", "--peers", peers])
    assert [_all, beside] = String.split(output, "Beside the fastest peer")
    assert beside =~ ~r/^train mlp 512 512, packed 288 +256 +1 .* 0\.00 .* jax$/m

    assert File.read!(json) =~
             ~s("peer":"jax","peer_other":null,"peer_peak_bytes":null,"peer_us":)
  end

  test "every case has a title of its own for each batch and number of threads" do
    cases = Cases.all(2)

    assert length(cases) ==
             cases |> Enum.uniq_by(&{Case.title(&1), &1.batch, &1.threads}) |> length()

    names = cases |> Enum.map(& &1.name) |> Enum.uniq()
    assert names == ~w(call frame embed act train forward import)

    for name <- ~w(act train), backbone <- ~w(mlp gru lstm) do
      assert Enum.any?(cases, &String.starts_with?(Case.title(&1), "#{name} #{backbone}"))
    end
  end

  describe "a case" do
    defp row(run) do
      limit = fn _measured -> {1.0, "a limit"} end
      fields = [name: "x", case: "y", batch: 1, threads: 1, run: run, limit: limit]
      Case.row(struct!(Case, fields), 0.0)
    end

    test "that goes wrong in whatever way says FAILED" do
      for run <- [
            fn _ -> raise "wrong output" end,
            fn _ -> throw(:away) end,
            fn _ -> exit(:gone) end,
            fn _ -> %{us: [], extra: %{}} end,
            fn _ -> {:error, :nothing} end
          ] do
        row = row(run)
        assert %{ok: false, median_us: nil, n: 0} = row
        assert Output.row(row) =~ "FAILED: "
      end
    end

    test "counts what it timed" do
      row = row(fn _ -> %{us: [3.0, 1.0, 2.0], extra: %{}} end)
      assert %{ok: true, median_us: 2.0, p95_us: 3.0, n: 3, limit_us: 1.0} = row
    end
  end

  test "a failed case is exit status 1" do
    replays = System.get_env("SCONCE_REPLAYS")
    System.put_env("SCONCE_REPLAYS", "/nowhere")

    on_exit(fn ->
      if replays,
        do: System.put_env("SCONCE_REPLAYS", replays),
        else: System.delete_env("SCONCE_REPLAYS")
    end)

    output =
      capture_io(fn ->
        capture_io(:stderr, fn ->
          args = ["--only", "real games", "--budget", "0"]
          assert catch_exit(Bench.run(args)) == {:shutdown, 1}
        end)
      end)

    assert output =~ "FAILED: no games"
  end

  test "what measures nothing is refused" do
    assert_raise Mix.Error, ~r/no case matches nonsense; there are\n  call NIF/, fn ->
      Bench.run(["--only", "nonsense"])
    end

    assert_raise Mix.Error, ~r/--only: /, fn -> Bench.run(["--only", "("]) end

    for {switches, sentence} <- [
          {["--peers", "/nowhere"], ~r"^--peers: /nowhere: no such file"},
          {["--with-peers"], ~r/^--with-peers: no peer has any of these cases/},
          {["--with-peers", "--peers", "x"], ~r/exclude each other/}
        ] do
      assert_raise Mix.Error, sentence, fn -> Bench.run(["--only", "^call NIF"] ++ switches) end
    end

    for {args, sentence} <- [
          {["--bugdet", "1"], ~r/^unknown option --bugdet, did you mean --budget\?/},
          {["--threads", "0"], ~r/^--threads cannot be "0", expected a positive integer/},
          {["--threads", "many"], ~r/^--threads cannot be "many"/},
          {["--budget", "-1"], ~r/^--budget cannot be "-1", expected a number of at least 0/},
          {["everything"], ~r/^unknown argument everything/}
        ] do
      assert_raise Mix.Error, sentence, fn -> Bench.run(args) end
    end
  end

  test "a file that cannot be written is refused before anything is measured", %{json: json} do
    path = Path.join(json, "rows.json")
    File.write!(json, "no folder")

    output =
      capture_io(fn ->
        assert_raise Mix.Error, ~r/^--json: #{path}: not a directory/, fn ->
          Bench.run(["--only", "^call NIF", "--json", path])
        end
      end)

    assert output == ""
  end
end
