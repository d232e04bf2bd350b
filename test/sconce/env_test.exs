defmodule Sconce.EnvTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.{Env, Error, Policy}

  doctest Env

  defp new!(name, opts \\ []) do
    {:ok, env} = Env.new(name, opts)
    env
  end

  defp floats(binary), do: for(<<number::float-32-little <- binary>>, do: number)

  # A step of this many environments takes longer than the limit of the inline lane.
  defp large!(opts \\ []) do
    env = new!(:duel, Keyword.put_new(opts, :count, 100_000))
    assert env.lane == :worker
    env
  end

  defp policy!(name, opts \\ []) do
    {:ok, spec} = Env.spec(name)
    own = [embedding: {:vector, spec.observation_size}, heads: spec.heads]
    {:ok, policy} = Policy.init(own ++ [backbone: :mlp, hidden_sizes: [8]] ++ opts, seed: 1)
    policy
  end

  test "images of a cart and a pole belong to the states of the same steps" do
    [plain, pixels] =
      for name <- [:cart_pole, :pixel_cart_pole], do: new!(name, count: 2, seed: 7)

    assert pixels.spec.observation_shape == [1, 64, 64]
    assert plain.spec.observation_shape == [4]
    assert new!(:pixel_cart_pole, frame_stack: 3).spec.observation_shape == [3, 64, 64]

    for input <- [1, 1, 0, 1] do
      {:ok, step} = Env.step(plain, [input, 1 - input])
      {:ok, seen} = Env.step(pixels, [input, 1 - input])
      assert step.reward == seen.reward
      assert Env.state(plain, 1) == Env.state(pixels, 1)
      <<x::float-32-little, _::binary>> = binary_part(step.observation, 16, 16)
      # The middle of the cart's row, weighted by its grey values.
      row = pixels |> Env.read(:observation) |> elem(1) |> binary_part(4 * (4096 + 53 * 64), 256)
      weights = row |> floats() |> Enum.with_index()
      sum = weights |> Enum.map(&elem(&1, 0)) |> Enum.sum()
      middle = (weights |> Enum.map(fn {grey, i} -> grey * i end) |> Enum.sum()) / sum
      assert_in_delta middle, 31.5 + 12.5 * x, 0.3
    end
  end

  describe "environments" do
    test "of every world step with inputs of zeros, in both lanes" do
      for name <- Env.names() do
        env = new!(name, count: 3)
        %{observation_size: size, num_labels: labels} = env.spec
        assert env.lane == :inline
        assert {:ok, step} = Env.step(env, List.duplicate(0, env.rows * labels))
        assert byte_size(step.observation) == 4 * env.rows * size
        assert byte_size(step.reward) == 4 * env.rows
        assert byte_size(step.terminated) == env.rows and byte_size(step.truncated) == env.rows
      end

      env = large!()
      assert {:ok, step} = Env.step(env, :binary.copy(<<0.0::float-32>>, 2 * env.rows))
      assert byte_size(step.observation) == 4 * env.rows * 19
      assert {:ok, 0} = Env.advance(env)
      assert Env.steps(env) == {:ok, 200_000}
    end

    test "step alike by binary, list, nested list, and buffer" do
      steps =
        for input <- [
              <<1.0::float-32-little, 0.0::float-32-little>>,
              [1, 0],
              [[1.0], [0.0]]
            ] do
          {:ok, step} = Env.step(new!(:cart_pole, count: 2, seed: 4), input)
          step
        end

      assert [step] = Enum.uniq(steps)
      env = new!(:cart_pole, count: 2, seed: 4)
      assert Env.put(env, [1, 0]) == :ok
      assert Env.advance(env) == {:ok, 0}
      for {column, value} <- step, do: assert(Env.read(env, column) == {:ok, value})
    end

    test "step with the inputs of a put, whatever came with a step in between" do
      [own, other] = for _ <- 1..2, do: new!(:cart_pole, count: 2, seed: 4)
      :ok = Env.put(own, [1, 0])
      for env <- [own, other], do: {:ok, _step} = Env.step(env, [0, 0])
      assert {:ok, 0} = Env.advance(own)
      {:ok, step} = Env.step(other, [1, 0])
      assert Env.read(own, :observation) == {:ok, step.observation}
    end

    test "depend on the seed and on their index alone" do
      observe = fn opts ->
        {:ok, all} = :cart_pole |> new!(opts) |> Env.read(:observation)
        all
      end

      few = observe.(count: 2, seed: 9)
      assert binary_part(observe.(count: 5, seed: 9), 0, byte_size(few)) == few
      assert observe.(count: 2, seed: 10) != few
      env = new!(:cart_pole, count: 2)
      {:ok, ^few} = Env.reset(env, seed: 9)
      {:ok, next} = Env.reset(env)
      assert next != few
    end

    test "show themselves with their steps" do
      env = new!(:pendulum, count: 2000)
      {:ok, 0} = Env.advance(env)

      assert inspect(env) ==
               "#Sconce.Env<pendulum · 2,000 environments · 2,000 rows · 2,000 steps>"
    end

    test "end at the limit, with the final observation and the episode" do
      env = new!(:cart_pole, count: 2, time_limit: 2, reward_weights: [alive: 0.5])
      {:ok, _first} = Env.step(env, [0, 1])
      {:ok, state} = Env.state(env, 1)
      {:ok, step} = Env.step(env, [0, 1])
      assert {step.ended, step.terminated, step.truncated} == {[0, 1], <<0, 0>>, <<1, 1>>}

      assert byte_size(step.final_observation) == 32 and
               step.final_observation != step.observation

      assert length(state) == 4

      assert {:ok, [%{env: 0}, %{env: 1, seat: 0, return: 1.0, length: 2, terminated: false}]} =
               Env.episodes(env)
    end
  end

  describe "a reset" do
    test "by mask begins episodes where the mask says so" do
      env = new!(:cart_pole, count: 3, time_limit: 1, autoreset: :disabled)
      {:ok, _ended} = Env.advance(env)
      assert {:error, %Error{kind: :mismatch, op: :step} = error} = Env.advance(env)
      assert Exception.message(error) =~ "environment 0: expected a running episode"
      {:ok, before} = Env.read(env, :observation)
      {:ok, seen} = Env.reset(env, [true, false, true])
      assert binary_part(seen, 16, 16) == binary_part(before, 16, 16)
      assert binary_part(seen, 0, 16) != binary_part(before, 0, 16)
      assert {:error, %Error{} = error} = Env.advance(env)
      assert Exception.message(error) =~ "environment 1"
      {:ok, _seen} = Env.reset(env, <<0, 1, 0>>)
      assert Env.advance(env) == {:ok, 3}
    end

    test "refuses a mask of another length, and terms that are no mask" do
      env = new!(:cart_pole, count: 3)
      assert {:error, %Error{kind: :mismatch, op: :reset}} = Env.reset(env, [true])
      assert_raise ArgumentError, ~r/mask: expected booleans/, fn -> Env.reset(env, [1, :no]) end
      assert_raise ArgumentError, ~r/mask: expected booleans/, fn -> Env.reset(env, 3) end
      assert_raise ArgumentError, ~r/did you mean :seed/, fn -> Env.reset(env, sed: 3) end
    end
  end

  describe "a wrong input" do
    test "is an error that names it, and moves no environment" do
      env = new!(:pendulum, count: 2)
      {:ok, before} = Env.read(env, :observation)

      for {input, kind, text} <- [
            {[0.0], :mismatch, "inputs: expected 8 bytes, 4 a row, got 4 bytes"},
            {<<0, 1, 2>>, :mismatch, "got 3 bytes"},
            {[0.0, "1"], :mismatch, "expected numbers of 32 bits"},
            {[[0.0 | 1.0]], :mismatch, "expected numbers of 32 bits"},
            {<<0.0::float-32-little, 0x7FC00000::32-little>>, :out_of_range, "action of row 1"}
          ] do
        assert {:error, %Error{kind: ^kind, op: :step} = error} = Env.step(env, input)
        assert Exception.message(error) =~ text
      end

      assert Env.read(env, :observation) == {:ok, before}
      # A refused input is not that of a later step without inputs.
      assert {:ok, 0} = Env.advance(env)
      assert_raise ArgumentError, ~r/inputs: expected a binary/, fn -> Env.step(env, 3) end
    end

    test "is an error of a large call too, and the environments go on" do
      env = large!()
      assert {:error, %Error{kind: :mismatch, op: :put}} = Env.put(env, <<0.0::float-32>>)
      assert {:error, %Error{kind: :mismatch, op: :step}} = Env.step(env, [])
      assert {:ok, 0} = Env.advance(env)
    end
  end

  describe "wrong options" do
    test "raise with the nearest name" do
      for {name, opts, text} <- [
            {:cart_pol, [], "did you mean :cart_pole?"},
            {:cart_pole, [cuont: 1], "did you mean :count?"},
            {:cart_pole, [count: 0], ":count"},
            {:duel, [opponent: :mixr], "did you mean \"mixer\"?"},
            {:duel, [reward_weights: [tuch: 1]], "did you mean \"touch\"?"},
            {:duel, [reward_weights: [touch: :big]], "reward weight :touch"},
            {:duel, [autoreset: :never], ":autoreset"}
          ],
          do:
            assert_raise(ArgumentError, ~r/#{Regex.escape(text)}/, fn -> Env.new(name, opts) end)
    end

    test "that only the native side knows are errors" do
      assert {:error, %Error{kind: :mismatch}} = Env.new(:cart_pole, opponent: :mixer)
      assert {:error, %Error{kind: :out_of_range}} = Env.new(:duel, reward_weights: [win: 1.0e9])

      assert {:error, %Error{kind: :out_of_range}} =
               Env.new(:acrobot, count: 1_048_576, frame_stack: 256)
    end
  end

  describe "columns" do
    test "keep their values after later steps" do
      env = new!(:cart_pole, count: 2000)
      {:ok, first} = Env.read(env, :observation)
      kept = :binary.copy(first)
      for _ <- 1..3, do: {:ok, _ended} = Env.advance(env)
      assert first == kept
      assert {:ok, other} = Env.read(env, :observation)
      assert other != first
      assert {:ok, ^other} = Env.read(env, :observation)
    end

    test "outlive their environments" do
      {:ok, column} = :cart_pole |> new!(count: 2000) |> Env.read(:observation)
      :erlang.garbage_collect()
      assert Enum.all?(floats(column), &(abs(&1) <= 0.05))
    end

    test "without a known name raise" do
      assert_raise ArgumentError, ~r/did you mean :reward/, fn ->
        Env.read(new!(:cart_pole), :rewards)
      end
    end
  end

  describe "environments of several processes" do
    test "are busy during a call, and free afterwards" do
      env = large!(count: 1_000_000)

      callers = for _ <- 1..4, do: Task.async(fn -> for(_ <- 1..5, do: Env.advance(env)) end)

      answers = callers |> Enum.flat_map(&Task.await(&1, 60_000))
      done = Enum.count(answers, &match?({:ok, _ended}, &1))
      assert done >= 5
      assert {:ok, 1_000_000 * done} == Env.steps(env)

      for {:error, error} <- answers, do: assert(%Error{kind: :busy, op: :step} = error)
      assert Enum.any?(answers, &match?({:error, _busy}, &1))
      assert {:ok, _ended} = Env.advance(env)
    end

    test "survive a caller that is killed during its call" do
      env = large!(count: 1_000_000)

      for _ <- 1..5 do
        caller = spawn(fn -> Env.advance(env) end)
        Process.sleep(1)
        Process.exit(caller, :kill)
      end

      assert eventually(fn -> match?({:ok, _ended}, Env.advance(env)) end)
      {:ok, steps} = Env.steps(env)
      assert rem(steps, 1_000_000) == 0
    end

    test "are not found in another VM" do
      env = %{new!(:cart_pole) | ref: make_ref()}
      assert {:error, %Error{kind: :not_found}} = Env.step(env, [0])
      assert {:error, %Error{kind: :not_found}} = Env.read(env, :reward)
      assert inspect(env) == "#Sconce.Env<cart_pole · 1 environment · 1 row>"
    end
  end

  defp eventually(check, tries \\ 500) do
    check.() or (tries > 0 and Process.sleep(10) == :ok and eventually(check, tries - 1))
  end

  describe "play" do
    test "gives a return and a length for each episode, equal for equal seeds" do
      policy = policy!(:cart_pole)

      play = fn opts ->
        {:ok, played} = Env.play(policy, :cart_pole, [deterministic: false] ++ opts)
        played
      end

      played = play.(episodes: 50, seed: 3)
      assert length(played.returns) == 50
      assert played.returns == Enum.map(played.lengths, &(&1 / 1))
      assert played.terminated == 50
      assert played.min <= played.median and played.median <= played.max
      assert_in_delta played.mean, Enum.sum(played.returns) / 50, 1.0e-6
      assert play.(episodes: 50, seed: 3).returns == played.returns
      assert play.(episodes: 50, seed: 4).returns != played.returns
      assert play.(episodes: 5, seed: 3).returns == Enum.take(played.returns, 5)
    end

    test "takes a checkpoint, its environment and the options of its run" do
      path = Path.join(tmp_dir!("env"), "policy.safetensors")
      notes = %{env: %{env: "pendulum", time_limit: 7, action_repeat: 1, frame_stack: 1}}
      :ok = Policy.save(policy!(:pendulum), path, notes: notes)
      assert {:ok, %{env: :pendulum, lengths: [7, 7]}} = Env.play(path, nil, episodes: 2)

      assert {:ok, %{lengths: [9, 9]}} = Env.play(path, :pendulum, episodes: 2, time_limit: 9)

      assert {:ok, %{states: states, terminated: false}} = Env.trace(path)
      assert length(states) == 8
    end

    test "is an error without an environment, and for one that the policy does not fit" do
      policy = policy!(:cart_pole)
      assert {:error, %Error{kind: :mismatch, op: :play}} = Env.play(policy)
      assert {:error, %Error{kind: :mismatch, op: :play}} = Env.play(policy, :acrobot)
      assert {:error, %Error{kind: :not_found}} = Env.play("no/such.safetensors", :acrobot)

      assert_raise ArgumentError, ~r/:episodes/, fn ->
        Env.play(policy, :cart_pole, episodes: 0)
      end
    end

    test "carries memory, plays against opponents, and in both seats" do
      {:ok, spec} = Env.spec(:duel)
      own = [embedding: {:vector, spec.observation_size}, heads: spec.heads]
      {:ok, policy} = Policy.init(own ++ [backbone: :gru, hidden_size: 8, num_layers: 1], seed: 2)
      assert {:ok, alone} = Env.play(policy, :duel, episodes: 20, opponent: :striker)
      assert {:ok, both} = Env.play(policy, :duel, episodes: 20)
      assert length(alone.returns) == 20 and length(both.returns) == 20
      assert alone.max <= 4.0 and alone.min >= -4.0
    end

    test "ends with its caller" do
      policy = policy!(:cart_pole)
      player = spawn(fn -> Env.play(policy, :cart_pole, episodes: 60_000) end)
      Process.sleep(5)
      Process.exit(player, :kill)
      assert {:ok, _played} = Env.play(policy, :cart_pole, episodes: 1)
    end
  end
end
