# Trains a policy on counts, scores it and plays it. No Elixir code knows the kind of its head.
alias Sconce.{Corpus, Policy, Session, Trainer}

dir = Path.join(System.tmp_dir!(), "sconce-poisson-#{System.pid()}")
:rand.seed(:exsss, {1, 2, 3})

games =
  for _ <- 1..6 do
    rows = for _ <- 1..100, do: :rand.uniform()
    {Enum.map(rows, &[&1]), for(x <- rows, do: [if(x > 0.5, do: 4, else: Enum.random(0..1))])}
  end

heads = [times: {:poisson, 6}]
{:ok, corpus} = Corpus.build({:vector, 1}, games, into: dir <> "/corpus", heads: heads)
opts = [backbone: :mlp, hidden_sizes: [16], window_size: 5, stride: 2, steps: 300, loss: :plain]
{:ok, run} = Trainer.start_link([corpus: corpus, out: dir <> "/run", learning_rate: 0.01] ++ opts)
{:ok, report} = Trainer.await(run, 120_000)
true = report.policy.nll < 1.5
{:ok, policy} = Policy.load(dir <> "/run/last.safetensors")
{:ok, session} = Session.open(policy, deterministic: true)
played = for x <- [0.9, 0.1], {:ok, action} <- [Session.act(session, [x])], do: action.choices.times
[many, few] = played
true = many in 3..5 and few in 0..1
File.rm_rf!(dir)
IO.puts("A head that counts: #{inspect(policy)}, plays #{inspect(played)}")
