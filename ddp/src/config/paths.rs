//! Paths of data in a saved config: absolute, so that a run can be evaluated and resumed from any folder.

use std::path::Path;

use super::{Config, DataConfig, EvalSource};

impl Config {
    /// [`Config::to_saved_toml`] for a checkpoint or a model: without a name that is the folder's, so that equal runs in two folders
    /// save equal bytes.
    pub fn to_model_toml(&self) -> String {
        let text = self.to_saved_toml();
        match text.split_once('\n') {
            Some((first, rest)) if self.given.is_folder_name && first.starts_with("name = ") => {
                format!("# name: that of the folder\n{rest}")
            }
            _ => text,
        }
    }

    /// [`Config::to_toml`] for a run's folder: with absolute paths of data.
    pub fn to_saved_toml(&self) -> String {
        let mut config = self.clone();
        config.data.make_absolute();
        config.to_toml()
    }
}

impl DataConfig {
    fn make_absolute(&mut self) {
        if self.is_weight_files() {
            self.weight.iter_mut().for_each(make_absolute);
        }
        make_absolute(&mut self.train);
        if let EvalSource::Source(source) = &mut self.eval {
            make_absolute(source);
        }
        self.cache.iter_mut().for_each(make_absolute);
        for source in [&mut self.labels, &mut self.eval_labels, &mut self.eval_weight].into_iter().flatten() {
            make_absolute(source);
        }
    }
}

/// Makes a file, folder or pattern absolute. If there is no current folder, it stays as it is.
fn make_absolute(source: &mut String) {
    let path = Path::new(source.as_str());
    if source.split_once("://").is_some_and(|(scheme, _)| !scheme.contains('/')) {
        // A signature in a link is a secret, and valid for hours.
        if let (true, Some((link, _))) = (source.starts_with("http"), source.split_once('?')) {
            *source = link.to_owned();
        }
        return;
    }
    if source.starts_with("builtin:") || path.is_absolute() {
        return;
    }
    let is_pattern = source.contains(['*', '?', '[', '{']) && !path.exists();
    let absolute = if is_pattern {
        // The current folder is not a pattern.
        std::env::current_dir()
            .map(|folder| Path::new(&glob::Pattern::escape(&folder.to_string_lossy())).join(path))
    } else {
        std::path::absolute(path)
    };
    // A path that is not UTF-8 can't be written.
    if let Ok(absolute) = absolute
        && let Some(absolute) = absolute.to_str()
    {
        *source = absolute.to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Overrides, Task};
    use super::*;

    #[test]
    fn paths_are_absolute_and_names_stay() {
        let sets = [
            "data.train=rows/*.npy",
            "data.labels=y.npy",
            "data.eval=/x/test.csv",
            "data.weight=w",
            "data.format=csv",
        ];
        let sets = sets.map(str::to_owned);
        let config = Config::load(None, &sets).unwrap();
        let saved = Config::from_saved(&config.to_saved_toml(), Path::new("saved")).unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(Path::new(&saved.data.train), here.join("rows/*.npy"));
        assert_eq!(saved.data.labels.as_deref().map(Path::new), Some(&*here.join("y.npy")));
        assert_eq!(saved.data.eval, EvalSource::Source("/x/test.csv".to_owned()));
        assert_eq!(saved.data.weight.as_deref(), Some("w"));
        assert_eq!(saved.to_saved_toml(), config.to_saved_toml());
        let digits = Config::load(None, &[]).unwrap();
        assert_eq!(digits.to_saved_toml(), digits.to_toml());
    }

    #[test]
    fn a_model_does_not_hold_the_name_of_its_folder() {
        let in_folder = |folder: &str| {
            let overrides = Overrides { folder: Some(folder.to_owned()), ..Overrides::default() };
            Config::load_with(None, &overrides).unwrap()
        };
        let (a, b) = (in_folder("lr=0.1"), in_folder("b"));
        assert_eq!((a.name.as_str(), b.name.as_str()), ("lr-0-1", "b"));
        assert!(a.to_saved_toml() != b.to_saved_toml() && a.to_model_toml() == b.to_model_toml());
        let decided = a.decided(Task::Classification).unwrap();
        assert_eq!(decided.to_model_toml(), b.clone().decided(Task::Classification).unwrap().to_model_toml());
        let saved = Config::from_saved(&b.to_model_toml(), Path::new("saved")).unwrap();
        assert_eq!(saved.name, "digits");
    }
}
