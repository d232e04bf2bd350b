defmodule Sconce.Compress.SearchTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO

  alias Sconce.{Compress, Env, Error, Policy, Trainer}
  alias Sconce.Compress.Search
  alias Sconce.Test.Scratch

  doctest Search

  setup_all do
    dir = Scratch.tmp_dir!("compress-search")
    {:ok, games} = Env.CartPole.demonstrations(games: 12, steps: 120, velocities: true, seed: 3)
    {:ok, corpus} = Env.CartPole.corpus(games, into: Path.join(dir, "corpus"), velocities: true)
    out = Path.join(dir, "run")

    opts =
      [backbone: :mlp, hidden_sizes: [64, 64], steps: 150, window_size: 8, loss: :plain] ++
        [learning_rate: 3.0e-3, warmup_steps: 0]

    {:ok, run} = Trainer.start_link([corpus: corpus, out: out] ++ opts)
    {:ok, _report} = Trainer.await(run)
    {:ok, policy} = Policy.load(Path.join(out, "best.safetensors"))
    %{dir: dir, corpus: corpus, policy: policy, best: Path.join(out, "best.safetensors")}
  end

  test "a loose bound gives all matrices 4 bits, and a tight one gives some fewer", context do
    %{policy: policy, corpus: corpus} = context
    {:ok, loose} = Compress.search(policy, corpus, within: {:nll, 1.0}, calibration: corpus)
    count = length(loose.matrices)
    assert loose.chosen.counts == %{32 => 0, 8 => 0, 4 => count}
    assert loose.policy.bits == 4 and Enum.all?(loose.matrices, &(&1.bits == 4))
    assert loose.chosen.bytes < 0.25 * loose.base.bytes

    # A bound at the loss of 8 bits.
    eight = Enum.find(loose.points, &(&1.counts[8] == count))
    share = max(eight.nll / loose.base.nll - 1, 0.0) + 1.0e-9
    {:ok, tight} = Compress.search(policy, corpus, within: {:nll, share}, calibration: corpus)
    assert tight.chosen.nll <= tight.bound and tight.chosen.bytes <= eight.bytes
  end

  test "no loss is allowed: the result is never worse than the policy", context do
    {:ok, found} = Compress.search(context.policy, context.corpus, within: {:nll, 0.0})
    assert found.chosen.nll <= found.base.nll
    assert found.chosen.bytes <= found.base.bytes

    {:ok, fast} =
      Compress.search(context.policy, context.corpus, within: {:nll, 0.5}, for: :speed)

    times = for point <- fast.points, point.nll <= fast.bound, do: point.us
    assert fast.chosen.us == Enum.min(times)
  end

  test "products and matrices in 2:4 count with the bytes that they have", context do
    %{policy: policy, corpus: corpus} = context
    {:ok, product} = Compress.Policy.low_rank(policy, rank: 2)
    {:ok, sparse} = Compress.Policy.prune(policy, pattern: :two_four)

    for small <- [product, sparse] do
      {:ok, found} = Compress.search(small.policy, corpus, within: {:nll, 0.0})
      assert found.base.bytes == small.bytes and small.bytes < 0.7 * small.before
      assert found.chosen.bytes <= small.bytes
    end
  end

  test "the result is a table and a picture, and a later call goes on", context do
    %{policy: policy, corpus: corpus, dir: dir} = context
    out = Path.join(dir, "small")
    me = self()
    opts = [out: out, within: {:nll, 0.2}, progress: &send(me, {:scored, &1})]
    {:ok, found} = Compress.search(policy, corpus, opts)
    assert_received {:scored, "int8 0, int4 0: NLL " <> _}
    {:ok, best} = Policy.load(Path.join(out, "best.safetensors"))
    assert best.bits == found.policy.bits
    report = File.read!(Path.join(out, "report.txt"))
    assert report == to_string(found)

    assert report =~ ~r/^bytes within 20\.0+ % of the NLL/
    assert report =~ "backbone.layers.1.dense.weight"

    assert File.read!(Path.join(out, "front.svg")) == Search.svg(found)
    assert Search.svg(found) =~ "<svg" and inspect(found) =~ "#Sconce.Compress.Search<"
    assert Enum.sort(File.ls!(out)) == ~w(best.safetensors front.svg report.txt scores.etf)

    flush()
    {:ok, again} = Compress.search(policy, corpus, opts)
    refute_received {:scored, _line}
    assert again.chosen.nll == found.chosen.nll

    assert {:error, %Error{kind: :mismatch} = error} =
             Compress.search(policy, corpus, Keyword.put(opts, :group, 128))

    assert Exception.message(error) =~ "scores.etf"
    File.write!(Path.join(out, "scores.etf"), "cut")
    assert {:error, %Error{kind: :mismatch}} = Compress.search(policy, corpus, opts)
  end

  test "a bound on the likeliest actions counts those that differ from the policy's", context do
    %{policy: policy, corpus: corpus, best: best, dir: dir} = context
    {:ok, found} = Compress.search(policy, corpus, within: {:changed, 0.02})
    assert found.base.changed == 0.0 and found.bound == 0.02
    assert found.chosen.changed <= 0.02 and found.chosen.bytes < found.base.bytes
    allowed = for point <- found.points, point.changed <= 0.02, do: point.bytes
    assert found.chosen.bytes == Enum.min(allowed)
    assert Enum.any?(found.points, &(&1.changed > 0)) and Enum.all?(found.points, & &1.nll)
    assert to_string(found) =~ "bytes with at most 2.00 % of the likeliest actions changed"
    assert to_string(found) =~ "changed %"
    assert inspect(found) =~ "% of the actions changed" and Search.svg(found) =~ "changed actions"

    {:ok, none} = Compress.search(policy, corpus, within: {:changed, 0.0})
    assert none.chosen.changed == 0.0

    # Sessions count the same frames.
    other = Path.join(dir, "other.safetensors")
    {:ok, coded} = Compress.Policy.quantise(policy, bits: 4, group: 32)
    :ok = Policy.save(coded.policy, other)
    {:ok, report} = Trainer.evaluate(other, corpus, mode: :carry, reference: best)
    point = Enum.find(found.points, &(&1.counts[4] == length(found.matrices)))
    assert report.differs == point.changed and report.differs > 0

    assert Trainer.Report.format(report) =~
             "of the likeliest actions differ from those of the reference"

    {:ok, alone} = Trainer.evaluate(other, corpus, mode: :carry)
    assert alone.differs == nil and alone.policy == report.policy
  end

  test "the share of other actions is that of two policies in sessions", context do
    %{corpus: corpus, best: best, dir: dir} = context
    {:ok, first} = Policy.load(best)
    {:ok, second} = Policy.init(first.spec, seed: 77)
    path = Path.join(dir, "second.safetensors")
    :ok = Policy.save(second, path)

    choices = fn policy ->
      {:ok, session} = Sconce.Session.open(policy, deterministic: true, logits: true)

      for game <- 0..(corpus.info.games - 1), :ok = Sconce.Session.reset(session) do
        {:ok, recording} = Sconce.Corpus.recording(corpus, game, 0)

        for {frame, labels} <- recording do
          {:ok, action} = Sconce.Session.act(session, frame, choices: labels)
          %{action: logits} = action.logits
          Enum.find_index(logits, &(&1 == Enum.max(logits)))
        end
      end
      |> Enum.concat()
    end

    pairs = Enum.zip(choices.(first), choices.(second))
    counted = Enum.count(pairs, fn {one, other} -> one != other end) / length(pairs)
    {:ok, report} = Trainer.evaluate(path, corpus, mode: :carry, reference: best)
    assert counted > 0.05 and report.differs == counted
    assert report.policy.frames == length(pairs)
    {:ok, window} = Trainer.evaluate(path, corpus, mode: :window, reference: best)
    assert window.differs == counted
  end

  test "a bound on the return plays the same episodes with each policy, and needs no corpus",
       context do
    %{policy: policy, dir: dir} = context
    out = Path.join(dir, "played")
    me = self()

    opts =
      [within: {:return, 0.05}, env: :cart_pole, episodes: 20] ++
        [out: out, progress: &send(me, {:scored, &1})]

    {:ok, found} = Compress.search(policy, nil, opts)
    {:ok, played} = Env.play(policy, :cart_pole, episodes: 20, seed: 0)
    assert found.base.return == played.mean and found.bound == played.mean - 0.05 * played.mean
    assert found.chosen.return >= found.bound and found.chosen.bytes < found.base.bytes
    {:ok, again} = Env.play(found.policy, :cart_pole, episodes: 20, seed: 0)
    assert again.mean == found.chosen.return
    assert Enum.all?(found.points, &(&1.nll == nil and &1.changed == nil))
    assert_received {:scored, "int8 0, int4 0: mean return " <> _}
    assert to_string(found) =~ ~r/^bytes within 5\.0+ % of the mean return /
    assert inspect(found) =~ "mean return" and Search.svg(found) =~ "mean return over KiB"
    assert Enum.sort(File.ls!(out)) == ~w(best.safetensors front.svg report.txt scores.etf)

    flush()
    {:ok, resumed} = Compress.search(policy, nil, Keyword.put(opts, :within, {:return, 0.5}))
    assert resumed.chosen.bytes <= found.chosen.bytes
    refute_received {:scored, "int8 0, int4 0: mean return " <> _}

    for other <- [[episodes: 21], [env: :cart_pole_velocity_less]] do
      assert {:error, %Error{kind: :mismatch}} =
               Compress.search(policy, nil, Keyword.merge(opts, other))
    end

    # This policy has no notes of an environment.
    assert {:error, %Error{}} = Compress.search(policy, nil, within: {:return, 0.05})
  end

  test "options without effect are named", %{policy: policy, corpus: corpus} do
    for {on, opts, name} <- [
          {corpus, [env: :cart_pole], ":env"},
          {corpus, [within: {:changed, 0.1}, episodes: 3], ":episodes"},
          {nil, [within: {:return, 0.1}, mode: :window], ":mode"},
          {corpus, [within: {:return, 0.1}, env: :cart_pole], "corpus"},
          {nil, [within: {:nll, 0.1}], "corpus"},
          {nil, [within: {:return, 0.1}, env: :cart_pol], "cart_pole"}
        ] do
      assert_raise ArgumentError, ~r/#{name}/, fn -> Compress.search(policy, on, opts) end
    end
  end

  test "wrong arguments are named", %{policy: policy, corpus: corpus, dir: dir} do
    for opts <- [
          [within: 0.1],
          [within: {:nll, -0.1}],
          [within: {:acc, 0.1}],
          [for: :size],
          [group: 0]
        ] do
      assert_raise ArgumentError, fn -> Compress.search(policy, corpus, opts) end
    end

    assert_raise ArgumentError, ~r/policy/, fn -> Compress.search("best", corpus) end
    assert {:error, %Error{kind: :not_found}} = Compress.search(policy, Path.join(dir, "nowhere"))
    File.write!(Path.join(dir, "file"), "")

    assert {:error, %Error{kind: :io}} =
             Compress.search(policy, corpus, out: Path.join(dir, "file"))
  end

  test "mix sconce.compress prints the table", %{best: best, corpus: corpus, dir: dir} do
    out = Path.join(dir, "task")
    args = [best, "--corpus", corpus.dir, "--out", out, "--within", "nll:5%"]
    printed = capture_io(fn -> Mix.Tasks.Sconce.Compress.run(args) end)
    assert printed =~ ~r/bytes within 5\.0+ % of the NLL/
    assert printed =~ "int8 0, int4 0: NLL"
    assert File.exists?(Path.join(out, "best.safetensors"))

    args = [best, "--corpus", corpus.dir, "--out", Path.join(dir, "changed")]

    printed =
      capture_io(fn -> Mix.Tasks.Sconce.Compress.run(args ++ ["--within", "changed:2%"]) end)

    assert printed =~ "bytes with at most 2.00 % of the likeliest actions changed"

    args = [best, "--out", Path.join(dir, "return"), "--within", "return:5%"]
    args = args ++ ["--env", "cart_pole", "--episodes", "10"]
    printed = capture_io(fn -> Mix.Tasks.Sconce.Compress.run(args) end)
    assert printed =~ ~r/bytes within 5\.0+ % of the mean return/

    for {args, text} <- [
          {args ++ ["--corpus", corpus.dir], "--corpus has no effect with --within return"},
          {[best, "--out", out, "--within", "return:5%", "--env", "pole"], "environment"},
          {[best, "--corpus", corpus.dir, "--out", out, "--env", "cart_pole"],
           "--env has no effect"},
          {[best, "--corpus", corpus.dir], "--out is required"},
          {[best, "--out", out], "--corpus is required"},
          {["--corpus", corpus.dir, "--out", out], "which checkpoint"},
          {[best, "--corpus", corpus.dir, "--out", out, "--within", "1%"], "nll:PERCENT%"},
          {["nowhere", "--corpus", corpus.dir, "--out", out], "nowhere"}
        ] do
      assert_raise Mix.Error, ~r/#{Regex.escape(text)}/, fn ->
        Mix.Tasks.Sconce.Compress.run(args)
      end
    end
  end

  defp flush do
    receive do
      {:scored, _line} -> flush()
    after
      0 -> :ok
    end
  end
end
