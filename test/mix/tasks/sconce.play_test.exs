defmodule Mix.Tasks.Sconce.PlayTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Mix.Tasks.Sconce.Play
  alias Sconce.{Env, Policy}

  @small ~w(--environments 4 --rollout-steps 8 --minibatches 2 --hidden-sizes 8)

  defp checkpoint!(name, notes) do
    {:ok, spec} = Env.spec(name)
    own = [embedding: {:vector, spec.observation_size}, heads: spec.heads]
    {:ok, policy} = Policy.init(own ++ [backbone: :mlp, hidden_sizes: [8]], seed: 1)
    path = Path.join(tmp_dir!("play"), "policy.safetensors")
    :ok = Policy.save(policy, path, notes: notes)
    path
  end

  test "a run is learned and resumed, and its policy plays" do
    out = Path.join(tmp_dir!("play"), "run")
    run = ["--learn", "--env", "cart_pole", "--out", out, "--steps", "640"] ++ @small
    said = capture_io(fn -> Play.run(run) end)
    assert said =~ "cart_pole · 4 rows · 20 updates of 32 steps"
    assert said =~ "mean return of 100 episodes"
    assert said =~ ~r/^policy  .*best.safetensors$/m
    assert said =~ ~r/^curve   .*curve.svg$/m

    said = capture_io(fn -> Play.run(["--resume", out, "--steps", "704"]) end)
    assert said =~ "continues from step 640\n"

    said = capture_io(fn -> Play.run(["--resume", "--out", out, "--steps", "736"]) end)
    assert said =~ "continues from step 704\n"

    said = capture_io(fn -> Play.run(["--out", out, "--steps", "768", "--resume"]) end)
    assert said =~ "continues from step 736\n"

    best = Path.join(out, "best.safetensors")
    said = capture_io(fn -> Play.run([best, "--episodes", "5", "--sample"]) end)
    assert said =~ "cart_pole · 5 episodes, 5 ended by the rules\n"
    assert said =~ ~r/^return  mean [\d.]+  median [\d.]+  min [\d.]+  max [\d.]+$/m
    assert said =~ ~r/^[\d,]+ decisions of [\d.]+ us$/m
  end

  test "a world may be a module of the app" do
    out = Path.join(tmp_dir!("play"), "run")
    world = "Sconce.Test.Worlds.Catch"
    run = ["--learn", "--env", world, "--out", out, "--steps", "640"] ++ @small
    assert capture_io(fn -> Play.run(run) end) =~ "#{world} · 4 rows · 20 updates of 32 steps"
    said = capture_io(fn -> Play.run(["--resume", out, "--steps", "704"]) end)
    assert said =~ "continues from step 640\n"
    last = Path.join(out, "last.safetensors")
    said = capture_io(fn -> Play.run([last, "--episodes", "5", "--render"]) end)
    assert said =~ "#{world} · 5 episodes, 5 ended by the rules\n"
    assert said =~ "#{world} · step 6 · return"

    assert_raise Mix.Error, ~r/unknown environment/, fn ->
      Play.run([last, "--env", "Sconce.Test.Worlds"])
    end
  end

  test "a run is planned and tuned before it begins" do
    out = Path.join(tmp_dir!("play"), "run")
    run = ["--learn", "--env", "cart_pole", "--out", out, "--steps", "640"] ++ @small
    said = capture_io(fn -> Play.run(["--plan" | run]) end)
    assert said =~ ~r/^the run +[\d.]+ ms +20 updates, 640 steps/m
    said = capture_io(fn -> Play.run(["--tune", "--max", "8" | run]) end)
    assert said =~ ~r/^environments +an update +steps.s +memory$/m
    refute File.exists?(out)
  end

  test "an episode is shown and drawn" do
    path = checkpoint!(:pendulum, %{env: %{env: "pendulum", time_limit: 20}})
    svg = Path.join(Path.dirname(path), "episode.svg")
    said = capture_io(fn -> Play.run([path, "--episodes", "2", "--render", "--svg", svg]) end)
    assert said =~ "pendulum · step 20 · return -"
    assert said =~ "picture  #{svg}"
    assert said =~ "length  mean 20.0"
    assert File.read!(svg) =~ "<animate"
  end

  test "the environment and its options may be given" do
    path = checkpoint!(:duel, nil)
    args = ~w(--env duel --opponent striker --reward-weights touch=0,win=0 --episodes 3 --seed 2)
    assert capture_io(fn -> Play.run([path | args]) end) =~ "duel · 3 episodes"
    zero = ~r/return  mean -?0\.0  median -?0\.0  min -?0\.0  max -?0\.0/
    assert capture_io(fn -> Play.run([path | args]) end) =~ zero
  end

  test "players of a league play against each other" do
    path = checkpoint!(:duel, nil)
    svg = Path.join(Path.dirname(path), "league.svg")
    args = ~w(--league --env duel --games 10 --svg) ++ [svg, "striker", "idle", path]
    said = capture_io(fn -> Play.run(args) end)
    assert said =~ "duel · 10 games a pair"
    assert said =~ ~r/^3 \S+ .* ± \d+$/m
    assert said =~ "picture  #{svg}"
    assert File.read!(svg) =~ "3 players, 10 games a pair"
    run = Path.dirname(path)
    File.mkdir_p!(Path.join(run, "league"))
    File.cp!(path, Path.join(run, "league/self-00000000.safetensors"))
    File.cp!(path, Path.join(run, "last.safetensors"))
    said = capture_io(fn -> Play.run(["--league", "--env", "duel", "--games", "10", run]) end)
    assert said =~ "/self-0" and said =~ "/last"
  end

  test "wrong arguments are refused in the words of the command line" do
    path = checkpoint!(:pendulum, nil)

    for {args, text} <- [
          {[], "which checkpoint? mix sconce.play CHECKPOINT"},
          {[path, "more"], "unknown argument more"},
          {[path], "expected a name, got none"},
          {[path, "--env", "pendulu"],
           ~s(unknown environment "pendulu", did you mean "pendulum"?)},
          {[path, "--env", "acrobot"], "observation of the policy: expected 6, got 3"},
          {[path, "--episode", "3"], "did you mean --episodes?"},
          {[path, "--clip", "0.1"], "--clip needs --learn"},
          {[path, "--env", "pendulum", "--svg", "a.png"], "expected a file that ends in .svg"},
          {[path, "--reward-weights", "touch"], "--reward-weights cannot be"},
          {["nowhere.safetensors"], "nowhere.safetensors not found"},
          {["--league", "--env", "duel"], "which players?"},
          {["--league", "--env", "duel", "idle"], "players"},
          {["--league", "--env", "duel", "idle", "mixr"], ~s(did you mean "mixer"?)},
          {["--league", "idle", "mixer"], "--env is required without a policy"},
          {["--league", "idle", "mixer", "--episodes", "3"],
           "--episodes does not go with --league"},
          {[path, "--games", "3"], "--games needs --league"},
          {["--learn", "--out", "run"], "--env is required"},
          {["--learn", "--env", "duel"], "--out is required"},
          {["--learn", "--env", "duel", "--out", "run", "--episodes", "3"],
           "--episodes does not go with --learn"},
          {["--learn", "--env", "duel", "--out", "run", "--opponent", "mixr"],
           ~s(did you mean "mixer"?)},
          {["--learn", "--plan"], "--env is required"},
          {["--learn", "--plan", "--tune", "--env", "duel"], "--tune does not go with --plan"},
          {["--plan", "--resume", "a"], "--resume does not go with --plan"},
          {["--learn", "--plan", "--env", "duel", "--max", "8"], "--max needs --tune"},
          {[path, "--plan"], "--plan needs --learn"},
          {["--resume"], "--out is required"},
          {["--resume", "a", "--out", "b"], "--resume a continues in its folder"}
        ] do
      error = assert_raise Mix.Error, fn -> Play.run(args) end
      assert error.message =~ text
    end
  end

  test "every switch is documented once" do
    names = Keyword.keys(Play.schema())
    assert names == Enum.uniq(names)
    {:docs_v1, _, _, _, %{"en" => text}, _, _} = Code.fetch_docs(Play)

    for name <- names,
        name not in [:embedding],
        do: assert(text =~ "`#{Sconce.Switches.switch(name)}`")
  end
end
