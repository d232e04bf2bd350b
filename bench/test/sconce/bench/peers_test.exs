defmodule Sconce.Bench.PeersTest do
  use ExUnit.Case, async: false

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Sconce.Bench.{Case, Cases, Peers, Play}

  doctest Peers

  @lstm "lstm 256x2, packed 288"

  defp peer(peer, case, median_us, fields \\ %{}) do
    fields = Map.merge(%{"batch" => 32, "threads" => 2, "other" => 0.1}, fields)
    Map.merge(%{"peer" => peer, "case" => case, "median_us" => median_us}, fields)
  end

  defp ours(text, fields \\ %{}) do
    times = %{ok: true, median_us: 50.0, p99_us: 60.0, limit_us: 40.0, extra: %{}}
    %{name: "train", case: text, batch: 32, threads: 2} |> Map.merge(times) |> Map.merge(fields)
  end

  defp file(text) do
    path = Path.join(tmp_dir!("peers"), "peers.json")
    File.write!(path, text)
    path
  end

  test "reads the runner's rows, without the peers that could not run" do
    path =
      file("""
      {"peer": "jax", "case": "train_gru", "batch": 32, "threads": 1, "median_us": 1e2, "n": 5}
      {"peer": "torch", "case": "train_gru", "threads": 1, "skipped": "Error: \\"no\\", 3: {}"}
      """)

    assert {:ok, [row]} = Peers.read(path)
    assert %{"peer" => "jax", "threads" => 1, "median_us" => 100.0, "n" => 5} = row
  end

  test "a file without rows and a missing file are refused" do
    for text <- ["", "peers\n", ~s({"peer": "jax"}\n)] do
      assert {:error, reason} = Peers.read(file(text))
      assert reason =~ "no row of a peer"
    end

    assert {:error, "/nowhere: no such file or directory"} = Peers.read("/nowhere")
  end

  test "a row is compared with the fastest peer and its memory" do
    peers = [
      peer("jax", "train_lstm", 90.0),
      peer("torch", "train_lstm", 100.0),
      peer("torch", "train_lstm", 80.0),
      peer("torch", "train_lstm", 10.0, %{"threads" => 1}),
      peer("torch", "train_lstm", 10.0, %{"batch" => 1}),
      peer("torch", "lstm_full", 10.0),
      peer("jax", "memory_lstm", 1.0, %{"peak_bytes" => 1}),
      peer("torch", "memory_lstm", 1.0, %{"peak_bytes" => 90_000_000})
    ]

    beside = Peers.beside(ours(@lstm), peers)
    assert %{peer: "torch", peer_us: 80.0, of_peer: 0.625, peer_other: 0.1} = beside
    assert beside.peer_peak_bytes == 90_000_000

    row = ours(@lstm, %{extra: Map.put(beside, :peak_bytes, 45_000_000)})
    assert [titles, line] = [row, ours("nothing")] |> Peers.table() |> String.split("\n")

    assert String.split(titles) ==
             ~w(case batch threads median_us p99_us limit_us peer_us of_peer peak peer_peak peer)

    times = "50.0 +60.0 +40.0 +80.0 +0.6[23] +45.0 MB +90.0 MB"
    assert line =~ ~r/^train #{@lstm} +32 +2 +#{times} +torch$/
  end

  test "a decision is compared with bare forwards in f32, and with the fastest in its own format" do
    at = %{"batch" => 1, "threads" => 1}

    peers = [
      peer("onnxruntime", "policy_fused", 40.0, at),
      peer("torch-f32", "quant", 70.0, at),
      peer("onnxruntime-int8", "policy_fused", 25.0, at),
      peer("onnxruntime-uint8", "quant", 20.0, at),
      peer("torch-bf16", "quant", 100.0, at)
    ]

    fields = %{name: "act", batch: 1, threads: 1}
    text = "mlp 512 512, packed 288, one frame"
    assert %{peer: "onnxruntime", of_peer: 1.25} = f32 = Peers.beside(ours(text, fields), peers)
    refute is_map_key(f32, :rival)

    for {format, rival, of} <- [{:int8, "onnxruntime-uint8", 2.5}, {:bf16, "torch-bf16", 0.5}] do
      row = ours("#{text}, #{format}", Map.put(fields, :extra, %{format: format}))
      assert %{peer_us: 40.0, rival: ^rival, of_rival: ^of} = beside = Peers.beside(row, peers)
      table = Peers.table([%{row | extra: beside}])
      assert table =~ ~r/ 1.25 +- +- +onnxruntime; #{of}0 of #{rival}, [\d.]+$/
    end
  end

  test "a failed row, or one that no peer has, is compared with nothing" do
    peers = [peer("torch", "train_lstm", 80.0)]
    assert Peers.beside(ours(@lstm, %{ok: false, median_us: nil}), peers) == %{}
    assert Peers.beside(ours("lstm 256x2, learned"), peers) == %{}
    assert Peers.beside(ours(@lstm), []) == %{}
    assert Peers.table([ours(@lstm)]) == nil
  end

  test "each training step on packed inputs has a peer" do
    cases = for %Case{name: "train"} = bench <- Cases.all(2), bench.case =~ "packed", do: bench
    assert cases != []
    for bench <- cases, do: assert(["train_" <> _] = Peers.theirs(bench))
  end

  test "each decision by one step on packed inputs has a peer; windows and other layouts have none" do
    {packed, other} =
      Cases.all(2)
      |> Enum.filter(&(&1.name == "act"))
      |> Enum.split_with(&(&1.case =~ "packed 288, one frame"))

    assert packed != [] and other != []
    for bench <- packed, do: assert([_ | _] = Peers.theirs(bench))
    for bench <- other, do: assert(Peers.theirs(bench) == [])
  end

  test "steps of three worlds and learning have peers" do
    {shared, other} =
      Play.all(2)
      |> Enum.split_with(&(Case.title(&1) =~ ~r/^(ppo|env (cart_pole|mountain_car|pendulum)),? /))

    # Three sizes, three ways; an update and a run, with one and two threads.
    assert length(shared) == 3 * 3 * 3 + 4
    for bench <- shared, do: assert([_ | _] = Peers.theirs(bench))
    for bench <- other, do: assert(Peers.theirs(bench) == [])
  end

  test "a compiled loop of 128 steps counts as one step" do
    path =
      file(
        ~s({"peer": "jax-own", "case": "cartpole_scan128", "batch": 64, "threads": 1, "median_us": 1280})
      )

    assert {:ok, [row]} = Peers.read(path)
    bench = ours("cart_pole, native loop", %{name: "env", batch: 64, threads: 1})
    assert %{peer: "jax-own", peer_us: 10.0, of_peer: 5.0} = Peers.beside(bench, [row])
  end

  describe "the runner" do
    setup do
      names = ~w(SCONCE_PEERS PEERS_DIR)
      before = System.get_env() |> Map.take(names)

      on_exit(fn ->
        for name <- names, do: System.delete_env(name)
        System.put_env(before)
      end)

      # Replaces the peers' Python: prints the requested threads as a row.
      home = tmp_dir!("peers-home")
      python = Path.join(home, "venv/bin/python")
      File.mkdir_p!(Path.dirname(python))

      File.write!(python, ~S"""
      #!/bin/sh
      echo "a warning of some library"
      echo "{\"peer\": \"jax\", \"case\": \"train_lstm\", \"batch\": 32, \"threads\": $3, \"median_us\": 7.5}"
      """)

      File.chmod!(python, 0o755)
      System.put_env(%{"SCONCE_PEERS" => home, "PEERS_DIR" => home})
      {:ok, cases: Enum.filter(Cases.all(2), &(Case.title(&1) =~ "train #{@lstm}"))}
    end

    @tag skip: is_nil(System.find_executable("python3"))
    test "measures the cases that a peer has, with their threads", %{cases: cases} do
      capture_io(:stderr, fn -> send(self(), Peers.measure(cases, 0.5)) end)
      row = peer("jax", "train_lstm", 7.5) |> Map.delete("other")
      assert_received {:ok, rows}
      assert rows == for(threads <- [1, 2], do: %{row | "threads" => threads})
    end

    test "gets the matching cases", %{cases: cases} do
      assert Peers.selection(cases) == {" (train_lstm 32)$", "1,2"}
    end

    test "is not started for cases that it cannot measure", %{cases: cases} do
      assert {:error, "no peer has any of these cases"} = Peers.measure([], 1.0)
      System.delete_env("SCONCE_PEERS")
      assert {:error, "SCONCE_PEERS is not set"} = Peers.measure(cases, 1.0)
    end
  end
end
