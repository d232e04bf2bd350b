use super::*;
use crate::rng::Rng;
use crate::sampling::{Draw, Sampling};
use crate::weights::Source;

/// Labels of a controller at rest: eight buttons, four axes, a shoulder.
const NEUTRAL: [f32; 13] = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.0, 8.0, 8.0, 8.0, 0.0];

fn changed(at: usize, label: f32) -> [f32; 13] {
    let mut labels = NEUTRAL;
    labels[at] = label;
    labels
}

#[test]
fn an_invalid_label_is_an_error_that_names_its_head() -> Result<()> {
    let (sampling, rngs) = (Sampling::default(), [Rng::new(1, "act", 0)]);
    let said = |e: Result<()>| e.err().map(|e| e.to_string());
    let (button, stick) = (changed(3, 2.0), changed(9, 17.0));
    for (kind, prior) in [(HeadsKind::Independent, true), (HeadsKind::Autoregressive, false)] {
        let spec = spec::Heads { prior, ..spec::Heads::controller(kind) };
        let heads = Heads::new(&spec, 4, &Builder::new(Source::Seed(1), false))?;
        let trunk = tensor::tensor(vec![0.5; 4], (1, 4))?.into();
        let forward = |previous: &[f32]| heads.forward(&trunk, Some(&NEUTRAL), previous);
        let act = |previous: &[f32], given: Option<[f32; 13]>| {
            let given = given.as_ref().map(|labels| labels.as_slice());
            heads.act(
                &trunk,
                previous,
                Draw { sampling: &sampling, rngs: &rngs, given, mask: None },
            )
        };
        for previous in [NEUTRAL, [NONE; 13], changed(12, NONE)] {
            forward(&previous)?;
            act(&previous, None)?;
        }
        for (wrong, name) in
            [(button, "buttons: 2 is outside 0..1"), (stick, "main_y: 17 is outside 0..16")]
        {
            let previous = Some(format!("previous {name}"));
            assert_eq!(said(forward(&wrong).map(drop)), previous);
            assert_eq!(said(act(&wrong, None).map(drop)), previous);
            let given = said(act(&NEUTRAL, Some(wrong)).map(drop));
            assert_eq!(given.as_deref(), Some(name));
            // Independent heads ignore labels.
            if kind == HeadsKind::Autoregressive {
                let forced = heads.forward(&trunk, Some(&wrong), &NEUTRAL);
                assert_eq!(said(forced.map(drop)).as_deref(), Some(name));
            }
        }
    }
    Ok(())
}
