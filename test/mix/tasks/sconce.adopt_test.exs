defmodule Mix.Tasks.Sconce.AdoptTest do
  use ExUnit.Case, async: true

  alias Mix.Tasks.Sconce.Adopt
  alias Sconce.{Native, Policy}
  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  @golden Path.expand("test/golden/exphil")

  defp golden(name), do: Path.join(@golden, name)

  test "writes the policy, what was assumed, how far its logits are, and what a decision costs" do
    out = Path.join(tmp_dir!("adopt"), "gru")
    answers = golden("gru.answers.safetensors")

    said =
      capture_io(fn -> Adopt.run([golden("gru.bin"), "--out", out, "--answers", answers]) end)

    assert said =~ "gru 24x2"
    assert said =~ "largest differences of logits, 4 windows of 20 frames"
    assert said =~ ~r/main_x +\d/
    assert said =~ ~r/\d+ us in mode :window/
    assert Enum.sort(File.ls!(out)) == ["policy.safetensors", "report.txt", "session.exs"]
    assert String.contains?(said, String.trim(File.read!(Path.join(out, "report.txt"))))
    {:ok, policy} = Policy.load(Path.join(out, "policy.safetensors"))
    assert policy.num_weights > 10_000
    {{:ok, _session}, _binding} = Code.eval_file(Path.join(out, "session.exs"))
  end

  test "a backbone that reads whole windows has no cost in mode :carry" do
    cost = fn name ->
      out = Path.join(tmp_dir!("adopt_cost"), name)
      capture_io(fn -> Adopt.run([golden("#{name}.bin"), "--out", out]) end)
    end

    assert cost.("gru") =~ "us in mode :carry"
    refute cost.("attention") =~ "us in mode :carry"
  end

  test "plays recorded games and scores them" do
    dir = tmp_dir!("adopt_games")
    :ok = Native.corpus_fixtures(Path.join(dir, "all"))
    games = Path.join(dir, "games")
    File.mkdir_p!(games)

    for path <- Path.wildcard(dir <> "/all/valid*.slp"),
        do: File.cp!(path, Path.join(games, Path.basename(path)))

    out = Path.join(dir, "out")

    said =
      capture_io(fn -> Adopt.run([golden("mlp_small.bin"), "--out", out, "--replays", games]) end)

    assert said =~ "recorded games, windows of 4 frames"
    assert said =~ "main_x"
  end

  test "logits of another policy are no success" do
    out = Path.join(tmp_dir!("adopt_far"), "lstm")
    args = [golden("lstm.bin"), "--out", out, "--answers", golden("gru.answers.safetensors")]

    said =
      capture_io(fn ->
        assert_raise Mix.Error, ~r/logits are not those of/, fn -> Adopt.run(args) end
      end)

    assert said =~ "largest differences of logits"
    assert File.exists?(Path.join(out, "report.txt"))
  end

  test "what was adopted before stays if a later adoption fails, and its games are not measured again" do
    dir = tmp_dir!("adopt_twice")
    :ok = Native.corpus_fixtures(Path.join(dir, "all"))
    [one, two | _] = Path.wildcard(dir <> "/all/valid*.slp")

    for {path, folder} <- [{one, "one"}, {two, "two"}] do
      File.mkdir_p!(Path.join(dir, folder))
      File.cp!(path, Path.join([dir, folder, Path.basename(path)]))
    end

    out = Path.join(dir, "out")
    run = fn file, games -> Adopt.run([golden(file), "--out", out, "--replays", games]) end
    capture_io(fn -> run.("mlp_small.bin", Path.join(dir, "one")) end)
    files = for name <- File.ls!(out), File.regular?(Path.join(out, name)), do: name
    before = Map.new(files, &{&1, File.read!(Path.join(out, &1))})

    for {games, reason} <- [
          {"nope", ~r/nope/},
          {Path.join(dir, "two"), ~r/1 game beside those of/}
        ] do
      capture_io(fn ->
        assert_raise Mix.Error, reason, fn -> run.("gru.bin", games) end
      end)

      files = for name <- File.ls!(out), File.regular?(Path.join(out, name)), do: name
      assert Map.new(files, &{&1, File.read!(Path.join(out, &1))}) == before
    end
  end

  test "a file that is no policy ends the task with its fault, and nothing is written" do
    out = Path.join(tmp_dir!("adopt_broken"), "out")
    run = fn args -> Adopt.run(args) end

    assert_raise Mix.Error, ~r/nan.bin|not finite/, fn ->
      run.([golden("broken/nan.bin"), "--out", out])
    end

    refute File.exists?(out)
    assert_raise Mix.Error, ~r/--out is required/, fn -> run.([golden("gru.bin")]) end
    assert_raise Mix.Error, ~r/which file/, fn -> run.(["--out", out]) end
    assert_raise Mix.Error, ~r/did you mean/, fn -> run.([golden("gru.bin"), "--outt", out]) end
  end
end
