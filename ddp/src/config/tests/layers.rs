//! Lists of layers and the presets that stand for them.

use super::*;

fn linear(out_features: usize, activation: Option<Activation>, bias: bool) -> LayerConfig {
    LayerConfig::Linear { out_features, activation, bias }
}

#[test]
fn a_list_is_read_from_either_form_of_toml_and_written_whole() {
    let block = vec![
        LayerConfig::RmsNorm.once(),
        LayerConfig::Glu { out_features: 12, gate: Gate::GeGlu, bias: false }.once(),
        LayerConfig::Dropout { p: 0.25 }.once(),
        linear(8, None, true).once(),
    ];
    let want = [
        linear(8, Some(Activation::Relu), true).once(),
        LayerEntry { layer: LayerConfig::Residual { layers: block }, repeat: 3 },
        LayerConfig::LayerNorm.once(),
        LayerConfig::BatchNorm { eps: 1e-5, momentum: 0.25 }.once(),
        LayerConfig::Activation(Activation::Tanh).once(),
    ];
    let inner = "[{ kind = \"rms_norm\" }, { kind = \"glu\", out_features = 12, gate = \"geglu\", bias = false }, \
                 { kind = \"dropout\", p = 0.25 }, { kind = \"linear\", out_features = 8 }]";
    let tables = format!(
        "[[model.layers]]\nkind = \"linear\"\nout_features = 8\nactivation = \"relu\"\n\
         [[model.layers]]\nkind = \"residual\"\nrepeat = 3\nlayers = {inner}\n\
         [[model.layers]]\nkind = \"layer_norm\"\n[[model.layers]]\nkind = \"batch_norm\"\nmomentum = 0.25\n\
         [[model.layers]]\nkind = \"activation\"\nactivation = \"tanh\"\n"
    );
    let config = from_text(&tables).unwrap();
    assert_eq!(config.model.layers, want);
    assert_eq!((config.model.n_hidden_linear(), config.model.hidden.len()), (7, 0));
    let toml = config.to_toml();
    let line = toml.lines().find(|line| line.starts_with("layers = ")).unwrap();
    assert!(toml.contains("\n# hidden: not used\n") && toml.contains("\n# kind: not used\n"), "{toml}");
    assert_eq!(
        from_sets(&[&format!("model.{}", line.replace("layers = ", "layers="))]).unwrap().model,
        config.model
    );
    assert_eq!(Config::from_saved(&toml, Path::new("run")).unwrap(), config);
    // If the output layer has no bias, the other layers have none either unless they set one.
    let config = from_text(&format!("[model]\nbias = false\n{tables}")).unwrap();
    assert_eq!(
        (&config.model.layers[0].layer, config.model.bias),
        (&linear(8, Some(Activation::Relu), false), false)
    );
    assert_eq!(Config::from_saved(&config.to_toml(), Path::new("run")).unwrap(), config);
}

#[test]
fn what_is_wrong_with_a_layer_is_said_with_its_place() {
    let refused = |layers: &str, parts: &[&str]| {
        assert_refused(
            from_text(&format!("[model]\nlayers = [{layers}]")),
            &[&["line 2", "`model.layers"], parts].concat(),
        );
    };
    refused("{ out_features = 3 }", &["layers that each have a `kind`, got none in layer 1 of model.layers"]);
    refused(
        "{ kind = \"embedding\" }",
        &["\nhint: `data.categorical` names", "`data.encode = \"embedding\"`"],
    );
    refused(
        "{ kind = \"liner\" }",
        &["`model.layers.kind` must be one of linear, glu", "did you mean \"linear\"?"],
    );
    refused("{ kind = \"linear\" }", &["`linear` layers with `out_features`, got none in layer 1"]);
    refused(
        "{ kind = \"rms_norm\" }, { kind = \"dropout\", p = 1 }",
        &["`model.layers.p` must be a probability", "got 1 in layer 2 of model.layers"],
    );
    refused(
        "{ kind = \"dropout\", p = 0.1, outfeatures = 3 }",
        &["`dropout` layers with the keys `p`, `kind`, `repeat`"],
    );
    refused(
        "{ kind = \"glu\", out_feature = 3 }",
        &["`out_feature` in layer 1", "did you mean `out_features`?"],
    );
    refused("{ kind = \"glu\", out_features = \"3\" }", &["a whole number, got the text \"3\" in layer 1"]);
    refused(
        "7",
        &["a list of layers, each a table with a `kind`", "hint: `model.hidden` is a list of widths"],
    );
    refused("\"linear\"", &["a list of layers, each a table with a `kind`", "hint: for example [{ kind"]);
    refused("", &["at least one layer"]);
    refused(
        "{ kind = \"rms_norm\", repeat = 1000 }, { kind = \"rms_norm\", repeat = 1000 }",
        &["at most 1024 layers"],
    );
    let block = |inner: &str| format!("{{ kind = \"residual\", layers = [{inner}] }}");
    let (narrow, wide) =
        ("{ kind = \"linear\", out_features = 3 }", "{ kind = \"linear\", out_features = 4 }");
    refused(
        &format!("{narrow}, {}", block(wide)),
        &["keep the width of their rows, got rows of 3 that become 4 wide in layer 2", "out_features = 3"],
    );
    refused(&block(narrow), &["come after a `linear` or `glu` layer", "begin with a linear layer"]);
    refused(
        &format!("{narrow}, {}", block(&block(narrow))),
        &["`model.layers.kind` must be one of linear", "in layer 1 of layer 2 of model.layers"],
    );
    refused(
        &format!("{narrow}, {}", block("{ kind = \"numeric_embedding\" }")),
        &["`model.layers.kind` must be one of linear", "in layer 1 of layer 2 of model.layers"],
    );
    let wrong = format!("{narrow}, {}", block("{ kind = \"linear\", out_features = \"3\" }"));
    let error = from_text(&format!("[model]\nlayers = [{wrong}]")).unwrap_err().to_string();
    assert!(error.contains("the text \"3\" in layer 1 of layer 2 of model.layers"), "{error}");
    assert_eq!(error.matches(" in layer ").count(), 1, "{error}");
    let by_flag = from_sets(&["model.layers=[{kind=\"dropout\",p=\"0.1\"}]"]);
    assert_refused(by_flag, &["got the text \"0.1\" in layer 1 of model.layers\nhint: write `p = 0.1`"]);
    // A block that keeps the width of the features needs no layer before it.
    assert!(from_text(&format!("[model]\nlayers = [{}]", block("{ kind = \"rms_norm\" }"))).is_ok());
}

#[test]
fn a_list_and_the_keys_that_it_replaces_exclude_each_other() {
    let layers = "model.layers=[{kind=\"linear\",out_features=3}]";
    assert_refused(
        from_sets(&[layers, "model.hidden=[3]"]),
        &["`model.hidden` and `model.layers` are both given", "`hidden` lists widths"],
    );
    for other in ["model.kind=resmlp", "model.activation=tanh", "model.norm=layer", "model.dropout=0.1"] {
        let key = other.split('=').next().unwrap();
        assert_refused(
            from_sets(&[layers, other]),
            &[&format!("`{key}` must be absent next to `model.layers`")],
        );
    }
    assert_refused(
        from_sets(&["model.kind=swiglu", "model.activation=tanh"]),
        &["`model.activation` must be absent where `model.kind` is \"swiglu\""],
    );
    assert_refused(from_sets(&["model.kind=resmlp", "model.hidden=[]"]), &["give a width for each block"]);
    // Settings of the command line replace those of the file.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    let over = |text: &str, set: &str| {
        fs::write(&path, format!("[data]\ntrain = \"builtin:digits\"\n[model]\n{text}")).unwrap();
        Config::load(Some(&path), &[set.to_owned()]).unwrap().model
    };
    let usual = "hidden = [16]\nactivation = \"gelu\"\ndropout = 0.1\nnorm = \"layer\"";
    assert_eq!(over(usual, layers), from_sets(&[layers]).unwrap().model);
    let swiglu = ["model.kind=swiglu", "model.hidden=[16]", "model.dropout=0.1"];
    assert_eq!(over(usual, "model.kind=swiglu"), from_sets(&swiglu).unwrap().model);
    let listed = "layers = [{ kind = \"rms_norm\" }]";
    assert_eq!(over(listed, "model.kind=swiglu"), from_sets(&["model.kind=swiglu"]).unwrap().model);
    assert_eq!(over(listed, "model.hidden=[5]"), from_sets(&["model.hidden=[5]"]).unwrap().model);
}

#[test]
fn presets_stand_for_lists() {
    let layers = |sets: &[&str]| from_sets(sets).unwrap().model.layers;
    let written =
        |sets: &[&str]| layers(sets).iter().map(|entry| entry.to_toml()).collect::<Vec<_>>().join(", ");
    assert!(layers(&["model.kind=mlp"]).is_empty());
    assert_eq!(
        written(&[
            "model.kind=resmlp",
            "model.hidden=[16,16,8]",
            "model.activation=gelu",
            "model.dropout=0.1"
        ]),
        "{ kind = \"linear\", out_features = 16, bias = true }, \
         { kind = \"residual\", layers = [{ kind = \"layer_norm\" }, \
         { kind = \"linear\", out_features = 32, activation = \"gelu\", bias = true }, { kind = \"dropout\", p = 0.1 }, \
         { kind = \"linear\", out_features = 16, bias = true }, { kind = \"dropout\", p = 0.1 }], repeat = 2 }, \
         { kind = \"linear\", out_features = 8, bias = true }, \
         { kind = \"residual\", layers = [{ kind = \"layer_norm\" }, \
         { kind = \"linear\", out_features = 16, activation = \"gelu\", bias = true }, { kind = \"dropout\", p = 0.1 }, \
         { kind = \"linear\", out_features = 8, bias = true }, { kind = \"dropout\", p = 0.1 }] }, \
         { kind = \"layer_norm\" }, { kind = \"activation\", activation = \"gelu\" }"
    );
    // 2/3 of the 2 · 96 units of a layer without a gate.
    assert_eq!(
        written(&["model.kind=swiglu", "model.hidden=[96]", "model.bias=false"]),
        "{ kind = \"linear\", out_features = 96, bias = false }, \
         { kind = \"residual\", layers = [{ kind = \"rms_norm\" }, \
         { kind = \"glu\", out_features = 128, gate = \"swiglu\", bias = false }, \
         { kind = \"linear\", out_features = 96, bias = false }] }, { kind = \"rms_norm\" }"
    );
    assert_eq!(
        written(&[
            "model.kind=periodic_mlp",
            "model.hidden=[64,32]",
            "model.activation=silu",
            "model.dropout=0.1"
        ]),
        "{ kind = \"activation\", activation = \"smooth_clip\" }, \
         { kind = \"numeric_embedding\", dim = 4, n_frequencies = 16, sigma = 0.1 }, { kind = \"scale\" }, \
         { kind = \"linear\", out_features = 64, activation = \"silu\", bias = true }, { kind = \"dropout\", p = 0.1 }, \
         { kind = \"linear\", out_features = 32, activation = \"silu\", bias = true }, { kind = \"dropout\", p = 0.1 }"
    );
    let normalize = |sets: &[&str]| from_sets(sets).unwrap().data.normalize;
    assert_eq!(normalize(&["model.kind=periodic_mlp"]), Normalize::Robust);
    assert_eq!(normalize(&["model.kind=periodic_mlp", "data.normalize=standard"]), Normalize::Standard);
    assert_eq!(normalize(&["model.kind=resmlp"]), Normalize::Auto);
    let error = ddp_kernels::hint::with_hint(&from_sets(&["model.kind=realmlp"]).unwrap_err());
    assert!(error.contains("\"periodic_mlp\" has these layers"), "{error}");
    let config = from_sets(&["model.kind=periodic_mlp"]).unwrap();
    assert_eq!(Config::from_saved(&config.to_toml(), Path::new("run")).unwrap(), config);
    let config = from_sets(&["model.kind=swiglu", "model.bias=false"]).unwrap();
    assert!(!config.model.bias);
    assert_eq!(Config::from_saved(&config.to_toml(), Path::new("run")).unwrap(), config);
}
