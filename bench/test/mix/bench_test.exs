defmodule Mix.Tasks.BenchTest do
  use ExUnit.Case, async: false

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Mix.Tasks.Bench
  alias Sconce.Bench.{Backbones, Case, Cases, Output}

  doctest Output

  @columns ~w(name case batch threads median_us p95_us p99_us n limit_us limit)

  setup do
    Mix.shell(Mix.Shell.IO)
    {:ok, json: Path.join(tmp_dir!("bench"), "rows.json")}
  end

  defp bench(only, args \\ []),
    do: capture_io(fn -> Bench.run(["--only", only, "--budget", "0.01"] ++ args) end)

  # Titles and rows of the table, which starts after an empty line.
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
    assert [call, frame, act, bf16, int8, int4] = rows
    assert call =~ ~r/^call +NIF, no-op +1 +1 +[\d.]+ +[\d.]+ +[\d.]+ +\d+ +- +the control/
    assert frame =~ ~r"^frame +pack a struct in Elixir +1 +1 .* 396 B at [\d.,]+ GB/s$"
    assert act =~ ~r"^act +mlp 512 512, learned, one frame .*, 2.1 MB at [\d.,]+ GB/s; packed f32"
    assert bf16 =~ ~r"^act +mlp 512 512, learned, one frame, bf16 .*, 1.1 MB at .*; packed bf16"

    assert int4 =~ ~r"^act +mlp 512 512, learned, one frame, int4 .*; packed (int4|bf16|f32)"

    assert int8 =~
             ~r"^act +mlp 512 512, learned, one frame, int8 .*, [\d.]+ [KM]B at .*; packed (int8|bf16)"

    for row <- [act, bf16, int8, int4],
        do: assert(row =~ ~r"\w+ lane, (made|real) frames, p99 [\d.,]+ and p99.9 [\d.,]+ t")

    refute output =~ "FAILED"
  end

  test "measures steps of environments natively, by handle and by binaries" do
    args = ~w(play --only pendulum --budget 0.01)
    output = capture_io(fn -> Bench.run(args) end)
    {@columns, rows} = table(output)
    assert length(rows) == 9
    # A machine that is slow or busy takes the worker lane for 4096 environments.
    for row <- rows, do: assert(row =~ ~r"^env +pendulum, .* M steps/s, (inline|worker)$")
    refute output =~ "FAILED"
  end

  test "measures networks of the zoo, each with its size and its limit", %{json: json} do
    args = ["zoo", "--only", "^anomaly|^keyword", "--budget", "0.01", "--json", json]
    output = capture_io(fn -> Bench.run(args) end)
    [_header, table] = String.split(output, "\n\n", parts: 2)
    lines = String.split(table, "\n", trim: true)
    assert [titles, keyword, anomaly, in_bits, keyword_bits, anomaly_bits, ratio] = lines
    assert String.starts_with?(titles, "network ")
    assert in_bits =~ ~r/^8 bits +vnni +weights/
    assert keyword_bits =~ ~r/^keyword_spot +(yes|no) +62.9 KB/
    assert anomaly_bits =~ ~r/^anomaly_detect +(yes|no) +7.0 KB/
    assert ratio =~ "2 networks: median"
    assert keyword =~ ~r/^keyword_spot +audio +57,416 +[\d.]+ KB/
    assert anomaly =~ ~r/^anomaly_detect +sensor +5,677 +[\d.]+ KB/

    for line <- json |> File.read!() |> String.split("\n", trim: true),
        do: assert(line =~ ~s("ok":true))

    message = assert_raise(Mix.Error, fn -> Bench.run(["zoo", "--only", "nonsense"]) end).message
    assert message =~ "no network matches"
  end

  test "measures archives in which some win, and shots that move" do
    args = ["evolve", "--only", "^archive|^episodes billiards", "--budget", "0.01"]
    {@columns, rows} = table(capture_io(fn -> Bench.run(args) end))
    assert [small, large, exact, published] = rows
    assert small =~ ~r/^archive +10 numbers, 10x10, 0.1 % win .* M candidates/
    assert large =~ ~r/^archive +10 numbers, 100x100, 0.1 % win .* M candidates/
    for row <- [exact, published], do: assert(row =~ ~r"billiards.*random shots .* k episodes/s")
  end

  test "measures updates of PPO and whole runs, beside peers", %{json: json} do
    peers = json <> ".peers"
    at = ~s("batch": 32, "threads": 1, "median_us": 9e9)

    rows =
      for name <- ~w(update solve_475),
          do: ~s({"peer": "jax-fused", "case": "ppo_#{name}", #{at}}\n)

    File.write!(peers, rows)
    args = ~w(play --only ^ppo --budget 0.01 --threads 1 --json #{json} --peers #{peers})
    output = capture_io(fn -> Bench.run(args) end)
    assert {@columns, [update, solve]} = table(output)

    assert update =~
             ~r"^ppo +cart_pole, an update +32 +1 .* an update of 2,048 steps, .* steps/s$"

    assert solve =~ ~r"^ppo +cart_pole, from start_link to 475 +32 +1 .*; 1 seed, [\d,]+ steps, "
    assert [_all, beside] = String.split(output, "Beside the fastest peer")
    assert length(for line <- String.split(beside, "\n"), line =~ ~r/ jax-fused$/, do: line) == 2
    refute output =~ "FAILED" or output =~ "SCONCE_REPLAYS"
  end

  test "writes one JSON object per line, with the machine in each", %{json: json} do
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

  test "a window is limited by its products unless a cell reads its weights for each frame" do
    {_titles, rows} = table(bench("^act (gru|mamba|sliding).*packed.*window"))
    assert [gru, mamba, attention] = rows
    # The slower of the two limits, as measured on this machine.
    assert gru =~ ~r/recurrent weights read|products of 60 frames/
    for row <- [mamba, attention], do: assert(row =~ "products of 60 frames")
  end

  test "training steps reduce the loss and report it", %{json: json} do
    bench("^train mlp", ["--json", json, "--threads", "1"])
    line = File.read!(json)
    assert [_, first, last] = Regex.run(~r/"first_loss":([\d.]+),.*"last_loss":([\d.]+)/, line)
    assert String.to_float(last) < String.to_float(first)
  end

  test "peers are shown beside Sconce, in a table and in the JSON", %{json: json} do
    peers = json <> ".peers"
    row = ~s({"peer": "jax", "case": "train_mlp", "batch": 256, "threads": 1, "median_us": 9e9})
    File.write!(peers, row)
    output = bench("^train mlp", ["--json", json, "--threads", "1", "--peers", peers])
    assert [_all, beside] = String.split(output, "Beside the fastest peer")
    assert beside =~ ~r/^train mlp 512 512, packed 288 +256 +1 .* 0\.00 .* jax$/m

    assert File.read!(json) =~
             ~s("peer":"jax","peer_other":null,"peer_peak_bytes":null,"peer_us":)
  end

  test "--help prints the columns and switches of each task, and measures nothing" do
    for {args, says} <- [{["--help"], "--only"}, {["quantise", "-h"], "--games"}] do
      output = capture_io(fn -> Bench.run(args) end)
      assert output =~ says
      assert output =~ "| column" or output =~ ~r/^column/m
    end
  end

  test "every case has a unique title for each batch and number of threads" do
    cases = Cases.all(2)

    assert length(cases) ==
             cases |> Enum.uniq_by(&{Case.title(&1), &1.batch, &1.threads}) |> length()

    names = cases |> Enum.map(& &1.name) |> Enum.uniq()
    assert names == ~w(call frame embed act train forward load import)

    for name <- ~w(act train), backbone <- ~w(mlp gru lstm) do
      assert Enum.any?(cases, &String.starts_with?(Case.title(&1), "#{name} #{backbone}"))
    end
  end

  describe "backbones" do
    setup do
      before = System.get_env("SCONCE_REPLAYS")
      System.delete_env("SCONCE_REPLAYS")

      on_exit(fn ->
        if before,
          do: System.put_env("SCONCE_REPLAYS", before),
          else: System.delete_env("SCONCE_REPLAYS")
      end)
    end

    defp backbones(args), do: Bench.run(["backbones", "--budget", "0", "--threads", "1"] ++ args)

    @titles String.split("backbone size weights NLL changed act, us state steps/s peak")

    test "have one row each, even without games to learn from", %{json: json} do
      output = capture_io(fn -> backbones(["--only", "^min_gru$", "--json", json]) end)
      {titles, [row]} = table(output)
      assert titles == @titles
      assert row =~ ~r/^min_gru +256x2 +[\d,]+ +- +- +[\d.,]+ +4.2 KB +[\d.,]+ +/

      assert [line] = json |> File.read!() |> String.split("\n", trim: true)
      for text <- [~s("name":"min_gru"), ~s("ok":true), ~s("threads":1)], do: assert(line =~ text)
    end

    test "learn from the games in SCONCE_REPLAYS" do
      replays = tmp_dir!("replays")

      [train, validation] = for side <- ~w(train validation), do: Path.join(replays, side)
      :ok = Sconce.Native.corpus_fixtures(train)
      File.mkdir_p!(validation)
      :ok = File.rename(Path.join(train, "valid.slp"), Path.join(validation, "valid.slp"))

      System.put_env("SCONCE_REPLAYS", replays)
      {_titles, [row]} = table(capture_io(fn -> backbones(~w(--only ^mlp$ --steps 2)) end))
      assert row =~ ~r/^mlp +512-512 +[\d,]+ +\d+\.\d{3} +\d+\.\d{3} +/
    end

    test "need a folder with games in train and validation" do
      for replays <- ["/nowhere", tmp_dir!("replays")] do
        System.put_env("SCONCE_REPLAYS", replays)

        capture_io(fn ->
          assert_raise Mix.Error, ~r/^import: .*#{replays}\/train.* not found/, fn ->
            backbones(["--only", "^mlp$"])
          end
        end)
      end
    end

    test "continue after one that fails" do
      say = &send(self(), {:said, &1})
      opts = [threads: 1, budget: 0.0, steps: 1, replays: nil]
      assert {:ok, [wrong, right]} = Backbones.run([:min_grue, :min_gru], opts, say)
      assert %{name: :min_grue, ok: false} = wrong
      assert %{name: :min_gru, ok: true} = right
      assert_received {:said, "min_grue FAILED: unknown backbone :min_grue" <> _}
      assert_received {:said, "min_gru " <> _}
    end

    test "are refused if none matches, and with switches that do not apply" do
      for {args, sentence} <- [
            {["--only", "^grue$"], "no backbone matches ^grue$"},
            {["--peers", "x"], "--peers cannot be combined with backbones"},
            {["--with-peers"], "--with-peers cannot be combined with backbones"},
            {["more"], ~r/^unknown argument/},
            {["--steps", "0"], ~r/^--steps cannot be "0"/}
          ] do
        assert_raise Mix.Error, sentence, fn -> backbones(args) end
      end
    end
  end

  describe "a case" do
    defp row(run) do
      limit = fn _measured -> {1.0, "a limit"} end
      fields = [name: "x", case: "y", batch: 1, threads: 1, run: run, limit: limit]
      Case.row(struct!(Case, fields), 0.0)
    end

    test "that fails in any way says FAILED" do
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

    test "counts its samples" do
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

  test "a run that measures nothing is refused" do
    assert_raise Mix.Error, ~r/no case matches nonsense; the cases are\n  call NIF/, fn ->
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
