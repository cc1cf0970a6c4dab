//! Arguments of a command, by their names.

/// Options that were given, each taken once.
pub struct Given(Vec<(String, String)>);

impl Given {
    /// Reads `--NAME VALUE` again and again.
    pub fn read(arguments: &[String]) -> Result<Self, String> {
        let mut given: Vec<(String, String)> = Vec::new();
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            let name = name.strip_prefix("--").ok_or_else(|| format!("{name} is no option"))?;
            let value = rest.next().ok_or_else(|| format!("--{name} wants a value"))?;
            if given.iter().any(|(other, _)| other == name) {
                return Err(format!("--{name} is given twice"));
            }
            given.push((name.to_owned(), value.clone()));
        }
        Ok(Self(given))
    }

    pub fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(given, _)| given == name)?;
        Some(self.0.swap_remove(at).1)
    }

    pub fn need(&mut self, name: &str) -> Result<String, String> {
        self.take(name).ok_or_else(|| format!("--{name} is missing"))
    }

    /// A number within `least` and `most`; without a default it must be given.
    pub fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
        &mut self,
        name: &str,
        default: Option<T>,
        least: T,
        most: T,
    ) -> Result<T, String> {
        match (self.optional_number(name, least, most)?, default) {
            (Some(number), _) | (None, Some(number)) => Ok(number),
            (None, None) => Err(format!("--{name} is missing")),
        }
    }

    pub fn optional_number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
        &mut self,
        name: &str,
        least: T,
        most: T,
    ) -> Result<Option<T>, String> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| (&least..=&most).contains(&number));
        number.map(Some).ok_or_else(|| format!("--{name} must be {least} to {most}"))
    }

    /// Fails for an option that nobody has taken.
    pub fn finish(self) -> Result<(), String> {
        match self.0.first() {
            Some((name, _)) => Err(format!("--{name} is unknown")),
            None => Ok(()),
        }
    }
}
